"""The iterators of a Loader: one epoch, and ``steps(n)``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _engine
from ..base.conventions import Closing, shown

if TYPE_CHECKING:
    from .loader import Loader


class LoaderIterator(_engine.EpochIterator, Closing):
    """One epoch of a Loader: the result of ``iter(loader)``.

    As a context manager it closes at the end of the block. `Loader.state` has the position.
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
        """End this iteration, as a ``break`` does. The workers stay alive."""
        super().close()

    def __repr__(self) -> str:
        return shown(self, self._loader, epoch=self._epoch)


class BatchIterator(Iterator[Any], Closing):
    """Batches of a Loader through another iterator: a progress bar, other arrays, several epochs.

    The result of ``loader.steps(n)``, and of ``iter(loader)`` with a progress bar. As a context
    manager it closes at the end of the block. `Loader.state` has the position.
    """

    def __init__(self, loader: Any, batches: Iterator[Any], **facts: object) -> None:
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
        """End this iteration, as a ``break`` does. The workers stay alive."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = iter(())

    def __repr__(self) -> str:
        return shown(self, self._loader, **self._facts)
