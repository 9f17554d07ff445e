"""A Loader whose batches are nests of torch tensors.

>>> import penstock
>>> train = penstock.Dataset.tfrecord("train.tfrecord").map(parse).shuffle(seed=1).batch(64)
>>> for batch in penstock.torch.feed(train, workers=8): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..base.element_spec import with_types
from ..base.interop import tensor_of_array
from ..base.nests import mapped
from ..errors import InvalidArgument
from ..loader import BatchIterator, Loader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loader.options import LoaderOptions

__all__ = ["TensorLoader", "feed"]


def feed(source: Any, *, device: None = None, **options: Unpack[LoaderOptions]) -> TensorLoader:
    """Feed torch from a `penstock.Dataset`, or from any other source of `penstock.Loader`.

    Parameters
    ----------
    source : object
        As for `penstock.Loader`. For a torch data set with torch's own arguments, samplers and
        collating use `DataLoader`.
    device : None
        Batches stay in CPU memory; call ``tensor.to(device)``.
    **options
        As for `penstock.Loader`.

    Returns
    -------
    TensorLoader

    Raises
    ------
    InvalidArgument
        A device is given, or an option of the Loader is invalid.

    Notes
    -----
    Arrays become tensors over the same memory, which is not overwritten while one of them exists.
    Read-only arrays are copied. Nests do not change, and values that torch has no type for are not
    converted: strings, `penstock.Ragged`.
    """
    if device is not None:
        raise InvalidArgument(
            f"device is {device!r}; feed leaves batches in memory: leave device out, and take "
            "tensor.to(device, non_blocking=True) of what comes",
            "feed",
        )
    return TensorLoader(source, **options)


class TensorLoader(Loader):
    """A `penstock.Loader` of torch tensors. Made by `feed`."""

    def __iter__(self) -> BatchIterator:
        batches = super().__iter__()
        return BatchIterator(self, map(_tensors, batches), epoch=self.epoch)

    def steps(self, n: int) -> BatchIterator:
        """Iterate over the next `n` batches, across the ends of epochs, as a Loader does."""
        return BatchIterator(self, map(_tensors, super().steps(n)), steps=n)

    @property
    def element_spec(self) -> Any:
        """As for `penstock.Loader`, with torch's types."""
        return with_types(super().element_spec, _type_of)


def _tensors(batch: Any) -> Any:
    return mapped(_tensor, batch)


def _tensor(leaf: Any) -> Any:
    """A tensor over an array's memory if torch has its type; otherwise the leaf itself."""
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        known = array.dtype.kind == "V" and getattr(torch, array.dtype.name, None)
        if not isinstance(known, torch.dtype):
            return leaf
        return tensor_of_array(array.view(f"i{array.dtype.itemsize}"), array.dtype.name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # longdouble, and other types of the platform
        return leaf


def _type_of(dtype: np.dtype[Any]) -> Any:
    made = _tensor(np.zeros(1, dtype))
    return made.dtype if isinstance(made, torch.Tensor) else dtype
