"""Several consumers of one Dataset: a batch for each device, each at its own pace."""

from __future__ import annotations

import json
import numbers
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from . import _engine
from .base.arguments import integer
from .base.conventions import Closing, Restorable, shown
from .device.place import place_of
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .dataset import Dataset
    from .device.place import Place
    from .loader import Loader
    from .loader.options import RunOptions


class Consumer(Closing):
    """One of several consumers of a pass: iterating over it yields its share of the batches.

    Only one thread may use it at a time. As a context manager it closes at the end of the block, so
    other consumers do not wait for a thread that failed. It also closes when it is deleted.
    """

    def __init__(self, hub: Any, number: int, loader: Loader, place: Place | None = None) -> None:
        self._hub = hub
        self._loader = loader
        self._place = place
        self.number = number
        self._finalizer = weakref.finalize(self, hub.close_one, number)
        self._finalizer.atexit = False

    def __iter__(self) -> Consumer:
        """Begin the next pass; the rest of an unfinished pass is dropped."""
        self._hub.begin(self.number)
        return self

    def __next__(self) -> Any:
        batch = self._hub.next(self.number)
        place = self._place
        # Not ahead: a batch that was taken here counts as taken in the state of all.
        return batch if place is None else place.deliver(place.send(batch))

    def close(self) -> None:
        """Stop: later batches of this consumer are dropped and counted, and no other one waits."""
        self._finalizer()
        if self._place is not None:
            self._place.close()

    @property
    def element_spec(self) -> Any:
        """That of the Dataset."""
        return self._loader.element_spec

    def __repr__(self) -> str:
        return shown(self, self._loader, number=self.number)


class Feeds(Sequence[Consumer], Restorable, Closing):
    """The n consumers of `Dataset.feeds`: batch i of a pass goes to consumer i mod n.

    One engine makes the batches of all consumers. A consumer may run ahead of the others until
    ``max_queue_size`` batches wait for them, or ``max_bytes`` have no space for more; then it waits
    for the slowest one. One waiting batch of each consumer is always allowed. The next pass
    begins when this pass has ended for all.

    Notes
    -----
    If a batch fails, its consumer raises the error and the pass ends for all: the others raise a
    `Closed` that names the error. Only one thread at a time may use a consumer; any thread may call
    the methods of this class. As a context manager it closes at the end of the block.

    Examples
    --------
    >>> def train_on(device, feed):
    ...     with feed:
    ...         for batch in feed:
    ...             step(device, batch)
    >>> with train.feeds(2, workers=8) as feeds:
    ...     threads = [Thread(target=train_on, args=pair) for pair in zip(devices, feeds)]
    """

    def __init__(
        self,
        dataset: Dataset,
        n: int,
        patience: float | None,
        devices: Sequence[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        from .loader import Loader
        from .loader.source import info_for_device

        n = integer("n", n, 1, 4096, operation="feeds")
        if isinstance(devices, str):
            raise InvalidArgument(
                f"devices is {devices!r}; give a list with one for each consumer", "feeds"
            )
        if devices is not None and len(devices) != n:
            raise InvalidArgument(
                f"there are {len(devices)} devices for {n} consumers; give one for each", "feeds"
            )
        if not options.pop("ordered", True):
            raise InvalidArgument("batches are distributed in order: no ordered=False", "feeds")
        if options.pop("progress", False):
            raise InvalidArgument("consumers have no common bar: no progress=True", "feeds")
        if patience is not None and not (isinstance(patience, numbers.Real) and patience > 0):
            raise InvalidArgument(f"patience is {patience!r}; give seconds above 0", "feeds")
        places = [place_of(device) for device in (devices or [None] * n)]
        for place in places:
            if place is not None:
                place.check_start_method(options.get("start_method"))
        on_error = options.get("on_error", "raise")
        loader = Loader(info_for_device(dataset, places, on_error=on_error), **options)
        queue = int(loader._settings["queue"])
        self._loader = loader
        self._hub = _engine.FeedsHub(loader, n, queue, -1.0 if patience is None else patience)
        self._feeds = [Consumer(self._hub, i, loader, place) for i, place in enumerate(places)]

    def __len__(self) -> int:
        return len(self._feeds)

    @overload
    def __getitem__(self, number: int) -> Consumer: ...
    @overload
    def __getitem__(self, number: slice) -> list[Consumer]: ...
    def __getitem__(self, number: int | slice) -> Consumer | list[Consumer]:
        return self._feeds[number]

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._feeds)

    def state(self) -> dict[str, Any]:
        """Return the common position, as a small dict for JSON.

        It has the lowest batch that was not taken, and the later batches that were.
        """
        self._loader._info.check_has_states("state")
        state: dict[str, Any] = json.loads(self._hub.state())
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, with any number of consumers and workers.

        Raises
        ------
        InvalidArgument
            The state is of another Dataset, or is not a state of feeds.
        """
        self._loader._info.check_has_states("restore")
        self._hub.restore(json.dumps(state))

    def stats(self) -> dict[str, Any]:
        """Return `Loader.stats`, and ``feeds``: ``taken`` and ``dropped`` of each consumer.

        With devices, also ``device``: the figures of `penstock.torch.feed` without ``ahead`` and
        ``shares``.
        """
        each: list[dict[str, Any]]
        each = [{"taken": taken, "dropped": dropped} for taken, dropped in self._hub.counts()]
        for feed, counts in zip(self._feeds, each, strict=True):
            if feed._place is not None:
                counts["device"] = feed._place.stats()
        return {**self._loader.stats(), "feeds": each}

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page of what each worker did; see `Loader.report`."""
        self._loader.report(path)

    def close(self) -> None:
        """End the workers and all consumers: a waiting consumer raises `Closed`."""
        self._hub.close()
        for feed in self._feeds:
            if feed._place is not None:
                feed._place.close()

    @property
    def element_spec(self) -> Any:
        """That of the Dataset."""
        return self._loader.element_spec

    def __repr__(self) -> str:
        return shown(self, self._loader, consumers=len(self))
