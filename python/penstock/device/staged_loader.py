"""The base of Loaders whose batches are sent to a device before they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..loader import BatchIterator, Loader
from .ahead import Ahead
from .functions import Rows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loader.options import LoaderOptions


class StagedLoader(Loader):
    """A `penstock.Loader` with batches in transfer, which its position does not count.

    Parameters
    ----------
    ahead : Ahead
        Sends the batches, if there is a device.
    """

    def __init__(self, source: Any, ahead: Ahead, **options: Unpack[LoaderOptions]) -> None:
        super().__init__(source, **options)
        self._ahead = ahead

    def _placed(self, batches: Iterator[Any], epoch: int | None) -> Iterator[Any]:
        """Return the batches as the framework's arrays. `epoch`: as in `Ahead.run`."""
        raise NotImplementedError

    def __iter__(self) -> BatchIterator:
        resumed = self._resumed
        if resumed or self._sent_beyond():
            self._take_back()
            self._resumed = resumed
        batches = super().__iter__()
        epoch = super().epoch
        return BatchIterator(self, self._placed(batches, epoch), epoch=epoch)

    def _steps(self, n: int) -> Iterator[Any]:
        self._take_back()
        return self._placed(super()._steps(n), None)

    def _sending(self, batch_size: int) -> Rows:
        """Return the rows of the batch that is sent now."""
        position = json.loads(self._ahead.sending)
        own = (position["batches"] - position.get("base", 0)) // position.get("world", 1)
        return Rows(self._settings["seed"], position["epoch"], own * batch_size)

    def _sent_beyond(self) -> bool:
        """Whether batches of a later round of a `repeat` than the last delivered one are sent.

        The next epoch is counted from the delivered one.
        """
        if self._ahead.position is None:
            return False
        delivered = json.loads(self._ahead.position)
        epoch, _, step = self._core.position()
        return bool(delivered["epoch"] != epoch or (delivered["batches"] == 0 and step != 0))

    def _take_back(self) -> None:
        """Set the position before the batches that were sent and not delivered."""
        position = self._ahead.position
        if position is not None and self._info.replayable and not self._info.no_state:
            self.restore(json.loads(position))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        position = self._ahead.position
        return super().epoch if position is None else int(json.loads(position)["epoch"])

    def state(self) -> dict[str, Any]:
        """Return the position, as `penstock.Loader.state`; batches in transfer do not count."""
        self._info.check_has_states("state")
        position = self._ahead.position
        return super().state() if position is None else dict(json.loads(position))

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, as `penstock.Loader.restore` does."""
        super().restore(state)
        self._ahead.forget()
