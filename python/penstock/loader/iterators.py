"""What a ``for`` over a Loader goes through, and ``steps(n)``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _engine
from ..base.conventions import Closing, shown

if TYPE_CHECKING:
    from .loader import Loader


class LoaderIterator(_engine.EpochIterator, Closing):
    """One epoch of a Loader: what ``iter(loader)`` returns.

    A context manager that closes. The place is the Loader's, which has `Loader.state`.
    """

    def __init__(self, loader: Loader, epoch: int) -> None:
        super().__init__(loader._core, epoch, loader._finished)
        self._loader = loader
        self._epoch = epoch

    if TYPE_CHECKING:

        def __iter__(self) -> LoaderIterator: ...
        def __next__(self) -> Any: ...

    @property
    def element_spec(self) -> Any:
        """That of the Loader."""
        return self._loader.element_spec

    def close(self) -> None:
        """Take nothing more of this epoch, as after a ``break``. The workers stay."""
        super().close()

    def __repr__(self) -> str:
        return shown(self, self._loader, epoch=self._epoch)


class BatchIterator(Iterator[Any], Closing):
    """Batches of a Loader that come by way of something else: a bar, other arrays, several epochs.

    What ``loader.steps(n)`` returns, and ``iter(loader)`` where it shows a bar. A context manager
    that closes. The place is the Loader's, which has `Loader.state`.
    """

    def __init__(self, loader: Loader, batches: Iterator[Any], **facts: object) -> None:
        self._loader = loader
        self._batches = batches
        self._facts = facts

    def __next__(self) -> Any:
        return next(self._batches)

    @property
    def element_spec(self) -> Any:
        """That of the Loader."""
        return self._loader.element_spec

    def close(self) -> None:
        """Take nothing more, as after a ``break``. The workers stay."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = iter(())

    def __repr__(self) -> str:
        return shown(self, self._loader, **self._facts)
