"""A queue between processes of one user: producers put nests of arrays, a learner gets batches."""

from __future__ import annotations

from typing import Any

from .. import _engine
from ..base.arguments import integer, text
from ..base.conventions import Closing
from ..errors import InvalidArgument
from .publish import _nanoseconds

__all__ = ["Channel", "Producer", "attach_channel", "channel"]


class Channel(Closing):
    """The learner's end of a channel: takes the items of all producers. `channel` makes one.

    The producers' rings are read in turn, so none starves. A producer that is killed loses at most
    the item that it was writing.

    Threads: any. A context manager that closes the channel. Not usable in a forked child: the
    channel is the parent's.
    """

    def __init__(self, name: str, end: _engine.ChannelEnd) -> None:
        self._name = name
        self._end = end

    def get(self, n: int, timeout: float | None = None, stack: bool = True) -> Any:
        """Wait for an item, and take up to ``n`` items; those of one producer keep their order.

        Parameters
        ----------
        n : int
            The largest number of items to take.
        timeout : float, optional
            Seconds to wait; None: no limit, 0: do not wait.
        stack : bool
            False: always return a list of items.

        Returns
        -------
        object
            Items of equal names, shapes and dtypes: one nest of arrays of shape (items, ...), with
            `penstock.Ragged` for strings and ragged leaves. Other items: a list. None after the
            timeout.

        Raises
        ------
        Closed
            The channel was closed.
        DataLoss
            A producer put an invalid item. It was disconnected; nothing else is lost.
        """
        count = integer("n", n, 0, operation="channel")
        if count < 1:
            raise InvalidArgument(f"n is {n}; take at least one item", "channel")
        return self._end.get(count, _nanoseconds(timeout), stack)

    def stats(self) -> dict[str, Any]:
        """Return counts of items.

        Returns
        -------
        dict
            ``producers``: a dict for each producer (of disconnected ones, the last 1,024) with
            ``pid``, ``alive`` and the counts ``put`` (accepted), ``got`` (taken),
            ``dropped_oldest`` (accepted, later dropped), ``dropped_newest`` (rejected) and
            ``queued``. Beside it the sum of each count. ``put`` is ``got + dropped_oldest +
            queued``.
        """
        producers = self._end.counts()
        names = ("put", "got", "dropped_oldest", "dropped_newest", "queued")
        sums = {name: sum(each[name] for each in producers) for name in names}
        return {**sums, "producers": producers}

    @property
    def name(self) -> str:
        """The name that producers attach to."""
        return self._name

    @property
    def capacity(self) -> int:
        """Bytes of each producer's ring."""
        return self._end.capacity

    @property
    def producers(self) -> int:
        """The number of connected producers."""
        return self._end.producers

    def close(self) -> None:
        """End all waits, here and in producers, and release the name.

        Items that were not taken are lost.
        """
        self._end.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Channel {self._name!r}>"


def channel(name: str, capacity: int = 16 << 20, when_full: str = "block") -> Channel:
    """Make a channel that any process of this user can put items into.

    Parameters
    ----------
    name : str
        At most 64 bytes. Reserved until this process closes the channel or ends. Names of channels
        and of published weights are independent.
    capacity : int
        Bytes of each producer's ring; only the part that was used takes memory. An item takes the
        bytes of its arrays and about 200 more.
    when_full : {"block", "drop_oldest", "drop_newest"}
        What `Producer.put` does if the ring is full: wait; drop the oldest item, without waiting;
        reject the item and return False. `Channel.stats` counts dropped items.

    Raises
    ------
    InvalidArgument
        Another process has the name (the text has its pid); an invalid capacity.

    Examples
    --------
    >>> channel = train.channel("experience")
    >>> batch = channel.get(256)  # a nest of arrays (up to 256, ...)

    As a source of a `penstock.Dataset`:

    >>> def items():
    ...     while True:
    ...         yield from channel.get(256, stack=False)
    >>> dataset = penstock.Dataset.generator(items).batch(256)
    """
    name, when_full = text(name, "channel"), text(when_full, "channel")
    size = integer("capacity", capacity, 0, operation="channel")
    return Channel(name, _engine.ChannelEnd.make(name, size, when_full))


class Producer(Closing):
    """The end of a channel that items are put into. `attach_channel` makes one.

    Threads: any. A forked child becomes a producer of its own in its first call. A context manager
    that closes the producer.
    """

    def __init__(self, name: str, end: _engine.ValueProducer) -> None:
        self._name = name
        self._end = end

    def put(self, item: Any, timeout: float | None = None) -> bool:
        """Put a nest of arrays, numbers and strings into the channel. Nothing is pickled.

        Arrays are copied once, into memory shared with the learner (twice with ``"drop_oldest"``).
        Items may differ in names, shapes and dtypes.

        Parameters
        ----------
        item : nest of arrays
            Dicts, tuples, lists and named tuples of arrays, numbers, str, bytes.
        timeout : float, optional
            Seconds to wait if the ring is full and the channel blocks, or for the next learner;
            None: no limit.

        Returns
        -------
        bool
            False if the item was rejected (``"drop_newest"``).

        Raises
        ------
        Timeout
            The ring was full, or there was no learner, for so long.
        Closed
            The learner has closed the channel or has ended, and items that it had not taken are
            lost; or this producer was closed.
        InvalidArgument
            Not a nest of arrays, or larger than the channel's capacity.
        """
        if item is None:
            raise InvalidArgument(
                "the item is None: put nothing, or a value that stands for None", "channel"
            )
        return self._end.put(item, _nanoseconds(timeout))

    @property
    def name(self) -> str:
        """The name of the channel."""
        return self._name

    @property
    def alive(self) -> bool:
        """Whether a learner is connected now."""
        return self._end.alive

    @property
    def lost(self) -> int:
        """Items that were lost because their learner ended before it took them."""
        return self._end.lost

    def close(self) -> None:
        """End all waits; later calls raise `Closed`. Items in the ring stay."""
        self._end.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Producer of {self._name!r}>"


def attach_channel(name: str, timeout: float | None = 60.0, reconnect: bool = False) -> Producer:
    """Connect to a channel of any process of this user.

    Parameters
    ----------
    name : str
        The name given to `channel`.
    timeout : float, optional
        Seconds to wait for the channel; None: no limit, 0: do not wait.
    reconnect : bool
        After the learner has ended, `Producer.put` waits for the next one instead of raising.

    Raises
    ------
    Timeout
        No process has the channel, or its process does not answer.
    InvalidArgument
        The process with that name is no learner, or belongs to another user.
    OutOfMemory
        The channel has 1,024 producers, the maximum; or there is no address space.

    Examples
    --------
    >>> experience = train.attach_channel("experience")
    >>> experience.put({"observation": observation, "action": 3, "reward": 1.0})
    """
    name = text(name, "attach_channel")
    return Producer(name, _engine.ValueProducer.attach(name, _nanoseconds(timeout), reconnect))
