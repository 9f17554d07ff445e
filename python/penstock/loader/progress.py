"""Output of a running Loader: a progress bar, and the log of losses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument

LOG = logging.getLogger("penstock")
_COUNTS = {
    "skipped": "skipped",
    "replaced": "replaced by other samples",
    "timeouts": "given up after the timeout",
}


def check_bar() -> None:
    """Raise an error if tqdm is not installed."""
    try:
        import tqdm.auto  # noqa: F401
    except ImportError:
        raise InvalidArgument("progress=True needs tqdm: pip install tqdm", "Loader") from None


def with_bar(batches: Iterator[Any], title: str, total: int | None, done: int = 0) -> Iterator[Any]:
    """The same batches, with a progress bar on the terminal or in the notebook."""
    from tqdm.auto import tqdm

    return iter(tqdm(batches, desc=title, total=total, initial=done, unit="batch"))


class LossLog:
    """Logs the losses of `Loader.stats` since the last epoch, once for each epoch."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._seen: dict[str, int] = {}

    def write(self, epoch: int, stats: dict[str, Any]) -> None:
        for key, text in _COUNTS.items():
            new = self._new(key, int(stats[key]))
            if new:
                LOG.warning(
                    "%s, epoch %d: %d %s; stats()['losses'] lists them",
                    self._title,
                    epoch,
                    new,
                    text,
                )
        new = self._new("no_room", int(stats["copies"]["no_room"]))
        if new:
            LOG.warning(
                "%s, epoch %d: %d arrays did not fit into the memory for batches and were copied "
                "out of it; hold on to fewer batches, or raise max_bytes",
                self._title,
                epoch,
                new,
            )

    def _new(self, key: str, count: int) -> int:
        before, self._seen[key] = self._seen.get(key, 0), count
        return count - before
