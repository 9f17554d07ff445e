"""A queue of experience: processes of this user put nests of arrays in, a learner takes batches."""

from __future__ import annotations

from typing import Any

from .. import _engine
from ..base.arguments import integer, text
from ..base.conventions import Closing
from ..errors import InvalidArgument
from .publish import _nanoseconds

__all__ = ["Channel", "Producer", "attach_channel", "channel"]


class Channel(Closing):
    """Where a learner takes what producers put. `channel` makes one.

    The rings of all producers are looked at in turn, so that none starves, and a producer that is
    killed loses at most the item that it was writing.

    Any thread. A context manager that closes it. A forked child has no channel: it is its parent's.
    """

    def __init__(self, name: str, end: _engine.ChannelEnd) -> None:
        self._name = name
        self._end = end

    def get(self, n: int, timeout: float | None = None, stack: bool = True) -> Any:
        """Wait until there is an item, and take up to ``n``; a producer's in its order.

        Parameters
        ----------
        n : int
            The most to take.
        timeout : float, optional
            Seconds to wait; None for ever, 0 for one look.
        stack : bool
            False: a list of items, whatever their shapes.

        Returns
        -------
        object
            Items that are alike as one nest of arrays (items, ...), with `penstock.Ragged` for
            what is a string or ragged in them; as a list of items where shapes or names differ;
            None after the timeout.

        Raises
        ------
        Closed
            The channel was closed.
        DataLoss
            A process put what is no item; it was sent away, and nothing else is lost.
        """
        count = integer("n", n, 0, operation="channel")
        if count < 1:
            raise InvalidArgument(f"n is {n}; take one item at least", "channel")
        return self._end.get(count, _nanoseconds(timeout), stack)

    def stats(self) -> dict[str, Any]:
        """What became of the items.

        Returns
        -------
        dict
            ``producers``: for each process that came (the last thousand of those that are gone)
            ``pid``, ``alive``, and the counts ``put`` (let in), ``got`` (taken), ``dropped_oldest``
            (let in, and pushed out), ``dropped_newest`` (not let in) and ``queued``; and the sums
            of the counts. ``put`` is ``got + dropped_oldest + queued``.
        """
        producers = self._end.counts()
        names = ("put", "got", "dropped_oldest", "dropped_newest", "queued")
        sums = {name: sum(each[name] for each in producers) for name in names}
        return {**sums, "producers": producers}

    @property
    def name(self) -> str:
        """What producers attach to."""
        return self._name

    @property
    def capacity(self) -> int:
        """Bytes of each producer's ring."""
        return self._end.capacity

    @property
    def producers(self) -> int:
        """How many are connected."""
        return self._end.producers

    def close(self) -> None:
        """End all waits, here and of producers, and give the name up.

        What was not taken is lost.
        """
        self._end.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Channel {self._name!r}>"


def channel(name: str, capacity: int = 16 << 20, when_full: str = "block") -> Channel:
    """Make a channel that any process of this user can put items into.

    Parameters
    ----------
    name : str
        At most 64 bytes; this process's until it closes the channel or ends. Names of channels and
        of published weights have nothing to do with each other. There is no file.
    capacity : int
        Bytes of the ring that each producer has; it costs memory as far as it is used. An item
        takes what its arrays have, and some 200 bytes.
    when_full : {"block", "drop_oldest", "drop_newest"}
        What a producer does whose ring is full: wait; push out its oldest item, and never wait;
        drop the item, of which `Producer.put` says so. All of it is counted (`Channel.stats`).

    Raises
    ------
    InvalidArgument
        Another process has the name (it says which); a capacity that cannot be.

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
    room = integer("capacity", capacity, 0, operation="channel")
    return Channel(name, _engine.ChannelEnd.make(name, room, when_full))


class Producer(Closing):
    """The end of a channel that items are put into. `attach_channel` makes one.

    Any thread. A forked child is a producer of its own from its first call on. A context manager
    that closes it.
    """

    def __init__(self, name: str, end: _engine.ValueProducer) -> None:
        self._name = name
        self._end = end

    def put(self, item: Any, timeout: float | None = None) -> bool:
        """Put an item in: any nest of arrays, numbers and strings. Nothing is pickled.

        Its arrays are copied once, into memory that the learner has too (twice with
        ``"drop_oldest"``). Items need not be alike.

        Parameters
        ----------
        item : nest of arrays
            Dicts, tuples, lists and named tuples of arrays, numbers, str, bytes.
        timeout : float, optional
            Seconds to wait where the ring is full and the channel blocks, or for the next learner;
            None for ever.

        Returns
        -------
        bool
            False if it was dropped (``"drop_newest"``).

        Raises
        ------
        Timeout
            No room, or no learner, for so long.
        Closed
            The learner has closed the channel or is gone, and what it had not taken is lost; or
            this producer was closed.
        InvalidArgument
            No nest of arrays; larger than the channel's capacity.
        """
        if item is None:
            raise InvalidArgument(
                "the item is None: put none, or a value that stands for it", "channel"
            )
        return self._end.put(item, _nanoseconds(timeout))

    @property
    def name(self) -> str:
        """What it is attached to."""
        return self._name

    @property
    def alive(self) -> bool:
        """Whether there is a learner now."""
        return self._end.alive

    @property
    def lost(self) -> int:
        """Items that were put, and that learners which are gone had not taken."""
        return self._end.lost

    def close(self) -> None:
        """End all waits; calls after this raise `Closed`. What was put stays."""
        self._end.close()

    def __repr__(self) -> str:
        return f"<penstock.train.Producer of {self._name!r}>"


def attach_channel(name: str, timeout: float | None = 60.0, reconnect: bool = False) -> Producer:
    """Put items into a channel of a process of this user, however that was started.

    Parameters
    ----------
    name : str
        As it was given to `channel`.
    timeout : float, optional
        Seconds to wait for the channel to be there; None for ever, 0 for one look.
    reconnect : bool
        When the learner is gone, `Producer.put` waits for the next one, and does not raise.

    Raises
    ------
    Timeout
        Nobody has such a channel, or its process does not answer.
    InvalidArgument
        Who has the name is no learner, or another user's process.
    OutOfMemory
        The channel has 1,024 producers already; or there is no address space.

    Examples
    --------
    >>> experience = train.attach_channel("experience")
    >>> experience.put({"observation": observation, "action": 3, "reward": 1.0})
    """
    name = text(name, "attach_channel")
    return Producer(name, _engine.ValueProducer.attach(name, _nanoseconds(timeout), reconnect))
