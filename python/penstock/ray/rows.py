"""The rows of a ray.data Dataset, or of one rank's shard of it, as a stream."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..dataset import Dataset
from ..errors import InvalidArgument

_OPERATION = "ray.rows"


def rows(
    data: Any, *, columns: Sequence[str] | None = None, nulls: str | Mapping[str, Any] = "error"
) -> Dataset:
    """Rows of a ray.data Dataset, as dicts of its columns. A stream without states.

    Parameters
    ----------
    data : ray.data.Dataset or ray.data.DataIterator
        All rows, or one rank's (``ray.train.get_dataset_shard``, ``streaming_split``). Every pass
        executes it again. One block at a time is held besides those that ray.data prefetches, and
        blocks are read in place from Ray's object store.
    columns, nulls
        As of `penstock.Dataset.arrow`, as are the types of the elements. Columns of tensors become
        arrays of their shape.

    Returns
    -------
    Dataset
        Its `batch`, `map` and other stages run in this process and its workers. Ray Data has no
        position to return to, so ``state()`` and ``restore()`` are an `InvalidArgument`.

    Raises
    ------
    InvalidArgument
        The data are not of ray.data. While iterating: as of `Dataset.arrow`.
    """
    ray_data = sys.modules.get("ray.data")
    if ray_data is None or not isinstance(data, (ray_data.Dataset, ray_data.DataIterator)):
        raise InvalidArgument(
            f"a {type(data).__name__} is not a ray.data Dataset or an iterator of one; tables with "
            "__arrow_c_stream__ are for penstock.Dataset.arrow",
            _OPERATION,
        )
    blocks = Blocks(data, columns, nulls)
    return Dataset.generator(blocks).flat_map(blocks.open_next)


class Blocks:
    """The blocks of ray.data, each opened when the stream needs it.

    The generator yields only its number, because a stream reads many elements of a generator ahead:
    blocks would take too much memory. `open_next` opens the next block of the pass of that number.
    """

    __penstock_no_state__ = (
        "rows of ray.data have no position that could be restored: save checkpoints between "
        "passes, or feed a penstock.Dataset of the files"
    )

    def __init__(self, data: Any, columns: Any, nulls: Any) -> None:
        self._data, self._columns, self._nulls = data, columns, nulls
        self._numbers = itertools.count()
        self._passes: dict[int, Iterator[Any]] = {}
        self._empty: Dataset | None = None  # a Dataset of the same schema, without rows

    def __call__(self) -> Iterator[int]:
        number = next(self._numbers)
        if self._data is None:
            raise InvalidArgument("rows of ray.data are read by the consumer's process", _OPERATION)
        batches = self._data.iter_batches(batch_size=None, batch_format="pyarrow")
        self._passes[number] = iter(batches)
        try:
            while number in self._passes:
                yield number
        finally:
            self._passes.pop(number, None)  # its end ends the execution in ray.data

    def open_next(self, number: int) -> Dataset:
        """The rows of the next block; a Dataset without rows at the end of the pass."""
        number = int(number)
        table = next(self._passes.get(number, iter(())), None)
        if table is None:
            self._passes.pop(number, None)
            return Dataset.items([]) if self._empty is None else self._empty
        table = _with_shapes(table)
        if self._empty is None:
            self._empty = self._arrow(table.slice(0, 0))
        return self._arrow(table)

    def _arrow(self, table: Any) -> Dataset:
        return Dataset.arrow(table, columns=self._columns, nulls=self._nulls)

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes get the chain but never read the stream.
        return {**self.__dict__, "_data": None, "_passes": {}, "_empty": None}


def _with_shapes(table: Any) -> Any:
    """Return a table whose columns of tensors are nested lists of fixed size.

    ray.data keeps a tensor as a flat list, and the shape in the type.
    """
    import pyarrow

    for place, field in enumerate(table.schema):
        shape = getattr(field.type, "shape", None)
        if shape is None or not isinstance(field.type, pyarrow.BaseExtensionType):
            continue
        column = table.column(place)
        if column.null_count or getattr(field.type, "permutation", None):
            raise InvalidArgument(
                f"column {field.name!r} has tensors that are missing or not in row-major order",
                _OPERATION,
            )
        chunks = []
        for chunk in column.chunks:
            values = chunk.storage.flatten()
            for size in reversed(shape):
                values = pyarrow.FixedSizeListArray.from_arrays(values, int(size))
            chunks.append(values)
        kind = field.type.storage_type.value_type
        for size in reversed(shape):
            kind = pyarrow.list_(kind, int(size))
        table = table.set_column(place, field.name, pyarrow.chunked_array(chunks, kind))
    return table
