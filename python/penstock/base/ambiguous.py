"""Checks for sources whose length and items are probably not what the user wants to feed."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .hdf5 import refuse_groups
from .nests import leaves_of

_TABLES = ("cudf", "modin", "pandas", "polars", "pyarrow")


def refuse_misread(source: Any, operation: str) -> None:
    """Raise an error for what would be fed as something else.

    The items of a path are characters, those of a table columns, those of an open HDF5 file or of
    any other mapping names.

    Raises
    ------
    InvalidArgument
        The text names the right argument.
    """
    if isinstance(source, (str, bytes, bytearray, os.PathLike)):
        raise InvalidArgument(
            f"{source!r:.100} is text and no dataset; if it is a path, give what is in the file: "
            "penstock.Dataset.tfrecord(path), .csv(path), .lines(path), np.load(path), ...",
            operation,
        )
    refuse_groups(leaves_of(source) if isinstance(source, (tuple, dict)) else [source], operation)
    refuse_mapping(source, operation)
    kind = type(source)
    if _is_table(source):
        raise InvalidArgument(
            f"a table ({kind.__module__.partition('.')[0]}.{kind.__name__}) is fed by "
            "penstock.Dataset.arrow(table), or as its columns: give a dict of arrays, such as "
            "{name: table[name].to_numpy() for name in (...)}",
            operation,
        )
    if isinstance(source, (tuple, dict)):
        parts = dict(enumerate(source)) if isinstance(source, tuple) else source
        columns = {key: type(part).__name__ for key, part in parts.items() if _is_table(part)}
        if columns:
            raise InvalidArgument(
                f"here {columns} are columns of a table; give arrays, such as column.to_numpy()",
                operation,
            )


def refuse_mapping(source: Any, operation: str) -> None:
    """Raise an error for named arrays in a mapping that is no dict, such as an open .npz file.

    Raises
    ------
    InvalidArgument
        The text has the call that feeds them.
    """
    h5py: Any = sys.modules.get("h5py")
    if isinstance(source, dict) or not isinstance(source, Mapping):
        return
    if h5py is not None and isinstance(source, h5py.Group):
        return  # `refuse_groups` has a better text
    names = list(itertools.islice(source, 4))
    if not names or not all(isinstance(name, str) for name in names):
        return
    if isinstance(source, np.lib.npyio.NpzFile):
        remedy = "feed its rows by penstock.Dataset.npz(path), or read all of it by dict(file)"
    else:
        remedy = "give a dict of arrays, by dict(mapping)"
    raise InvalidArgument(
        f"the items of a {type(source).__name__} are names, {', '.join(map(repr, names))}: "
        f"{remedy}",
        operation,
    )


def _is_table(value: Any) -> bool:
    """Whether it is a table or a column of one."""
    return type(value).__module__.partition(".")[0] in _TABLES


def refuse_columns(source: Any) -> None:
    """Raise an error for what `Dataset.source` would take for a few long elements: columns.

    Raises
    ------
    InvalidArgument
        A tuple or a dict has arrays, or a dict has names.
    """
    if not isinstance(source, (tuple, dict)):
        return
    parts = source.values() if isinstance(source, dict) else source
    named = isinstance(source, dict) and any(isinstance(key, str) for key in source)
    if named or any(hasattr(part, "shape") and getattr(part, "ndim", 1) for part in parts):
        raise InvalidArgument(
            f"a {type(source).__name__} of columns is fed by Dataset.arrays, which takes arrays of "
            "equal length; elements of your own by Dataset.source([...]), a list",
            "source",
        )


def is_stream_of_torch(source: Any) -> bool:
    """Whether it is an IterableDataset, which may have a length and inherits __getitem__."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(source, torch_data.IterableDataset)


def draw_order(source: Any) -> None:
    """Make one of Keras' own iterators draw its order now.

    Otherwise it draws the order at its first batch, and every worker would have another order.
    """
    image: Any = sys.modules.get("keras.src.legacy.preprocessing.image")
    if image is None or not isinstance(source, image.Iterator) or source.index_array is not None:
        return
    if source.seed is not None:
        import numpy as np

        np.random.seed(source.seed + source.total_batches_seen)  # as Keras does
    source._set_index_array()


def array_of(leaf: Any) -> Any:
    """Return a NumPy array over a torch tensor or jax array; None for other things."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        from .interop import array_of_tensor

        pair = array_of_tensor(leaf)
        return None if pair is None else pair[0]
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(leaf, jax.Array) and leaf.is_fully_addressable:
        import numpy as np

        return np.asarray(leaf)
    return None


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch, or an array of jax or TensorFlow, on any device."""
    for module, name in (("torch", "Tensor"), ("jax", "Array"), ("tensorflow", "Tensor")):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return True
    return False
