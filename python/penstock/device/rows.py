"""Rows in the memory of a device, and batches gathered from them: by torch, and by jax."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .. import _engine
from ..base.interop import tensor_of_leaf
from ..errors import InvalidArgument, OutOfMemory
from .permutation import jax_permuted, torch_permuted
from .place import JaxDevice, Place, torch_place

# Maps positions of an epoch to rows, by the arithmetic of `permute`.
Indices = Callable[[Any, Callable[[int, int, int, Any], Any]], Any]


class DeviceRows(Protocol):
    """Columns of rows on one device. One thread at a time.

    A column is an array ``(rows, ...)``; batches are lists of columns. Batches that come from the
    host are those of `place`.
    """

    name: str
    longest: int  # most rows that indices can name
    padded: bool  # `replaced` should get few different lengths
    place: Place | None  # sends batches of the host; None: they are there already

    def free_bytes(self) -> int | None:
        """Memory that rows may take; None: unknown."""

    def taken(self, leaf: Any) -> Any:
        """Return a leaf of a batch as this framework's array; None: there is no such type."""

    def allocate(self, columns: Sequence[Any], rows: int) -> None:
        """Reserve `rows` rows like those of `columns`. Raises `OutOfMemory`."""

    def write(self, first: int, columns: Sequence[Any]) -> None: ...
    def scatter(self, order: Any, first: int, columns: Sequence[Any]) -> None:
        """Write the rows that `order` names from `first` on."""

    def settle(self) -> None:
        """Wait until all that was written is there, for any stream."""

    def order(self, first: int, count: int, indices: Indices) -> Any:
        """Compute the rows at positions [first, first + count) of an epoch, on the device.

        A row that is not in memory becomes the last one that is.
        """

    def gather(self, order: Any, first: int, count: int, follow: int) -> list[Any]:
        """Return the rows that [first, first + count) of `order` names.

        The next calls are for the `follow` batches of `count` rows behind, unless the iteration
        ends before.
        """

    def replaced(self, batch: Sequence[Any], where: Any, columns: Sequence[Any]) -> list[Any]:
        """Return `batch` with other rows at the places `where`.

        If `padded`, places beyond the batch are ignored.
        """

    def close(self) -> None:
        """Release the memory."""


# Bytes of small batches that torch gathers in one call, for a kernel takes longer to start than to
# copy a small batch. Such a batch keeps all of these bytes allocated.
_TOGETHER = 4 << 20


def device_rows(device: Any, operation: str) -> DeviceRows:
    """Return the rows' memory on a device of torch's or jax's.

    Raises
    ------
    InvalidArgument
        It is no device, or it is several.
    NotFound
        There is no CUDA driver, or no such device.
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(device, jax.sharding.Sharding):
        raise InvalidArgument(
            f"device is {device!r}; give one device: each process or device keeps its own shard",
            operation,
        )
    if jax is not None and isinstance(device, jax.Device):
        return JaxRows(device)
    if device is None:
        raise InvalidArgument(
            'device is None; give a device, such as "cuda:0", "cpu" or jax.devices()[0]', operation
        )
    return TorchRows(device)


def host_permuted(length: int, seed: int, epoch: int, positions: np.ndarray[Any, Any]) -> Any:
    """Return the elements at `positions` (int64) of an epoch's order, by the engine."""
    if positions.size == 0:
        return positions
    first, last = int(positions.min()), int(positions.max())
    taken: Any = _engine.Permutation(length, seed, epoch).take(first, last + 1 - first)
    run = taken.view(np.int64)
    return run[positions - first] if positions.size != run.size or positions[0] != first else run


class TorchRows:
    """Rows as tensors."""

    longest = 1 << 62
    padded = False

    def __init__(self, device: Any) -> None:
        import torch

        self.place = torch_place(device)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = str(self.device)
        self._columns: list[Any] = []
        self._rows = self._row_bytes = 0
        self._shapes: list[tuple[tuple[int, ...], Any]] = []  # of a row, and its dtype
        self._stream: Any = None  # the CUDA stream of the latest work
        self._together = 0 if self.device.type == "cpu" else _TOGETHER
        self._order: Any = None  # that `_made` was gathered by
        self._made: list[tuple[int, list[Any]]] = []  # the next batches, the last one first

    def free_bytes(self) -> int | None:
        import torch

        if self.device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self.device)
        # Blocks that torch keeps and does not use are free, too.
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + kept)

    def taken(self, leaf: Any) -> Any:
        import torch

        tensor = tensor_of_leaf(leaf)
        return tensor if isinstance(tensor, torch.Tensor) else None

    def allocate(self, columns: Sequence[Any], rows: int) -> None:
        import torch

        self._columns, self._shapes, self._rows = [], [], rows
        for column in columns:
            self._shapes.append((tuple(column.shape[1:]), column.dtype))
            width = int(np.prod(column.shape[1:], dtype=np.int64))
            try:
                memory = torch.empty((rows, width), dtype=_gathered(column), device=self.device)
            except RuntimeError as error:
                self._columns = []
                raise OutOfMemory(
                    f"{self.name} has no memory for {rows} rows of {width} values: {error}; "
                    "give max_bytes, and the other rows stay in memory of the host",
                    "device.resident",
                ) from None
            self._columns.append(memory)
        self._row_bytes = sum(memory[:1].nbytes for memory in self._columns)

    def write(self, first: int, columns: Sequence[Any]) -> None:
        for memory, column in zip(self._columns, columns, strict=True):
            rows = column.shape[0]
            memory[first : first + rows].copy_(column.view(memory.dtype).reshape(rows, -1))

    def scatter(self, order: Any, first: int, columns: Sequence[Any]) -> None:
        if self._stream is not None:
            self._follow(order)
        for memory, column in zip(self._columns, columns, strict=True):
            rows = order[first : first + column.shape[0]]
            memory.index_copy_(0, rows, column.view(memory.dtype).reshape(rows.shape[0], -1))

    def settle(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def order(self, first: int, count: int, indices: Indices) -> Any:
        import torch

        if self.device.type == "cpu":  # the engine computes the same order, and faster
            positions = np.arange(first, first + count, dtype=np.int64)
            order = torch.from_numpy(indices(positions, host_permuted))
        else:
            here = torch.arange(first, first + count, device=self.device)
            order = indices(here, torch_permuted)
        if self.device.type == "cuda":
            self._stream = torch.cuda.current_stream(self.device)
        return order.clamp_(max=self._rows - 1)

    def gather(self, order: Any, first: int, count: int, follow: int) -> list[Any]:
        if self._stream is not None:
            self._follow(order)
        if self._order is not order or self._made[-1][0] != first:
            batches = 1 + min(follow, self._together // max(count * self._row_bytes, 1))
            self._gather(order, first, count, batches)
        columns = self._made.pop()[1]
        if not self._made:
            self._order = None
        return columns

    def _gather(self, order: Any, first: int, count: int, batches: int) -> None:
        """Gather several batches at once, each with tensors of its own for autograd."""
        import torch

        rows = order[first : first + count * batches]
        columns = [
            memory.index_select(0, rows).view(dtype).view(rows.shape[0], *shape)
            for memory, (shape, dtype) in zip(self._columns, self._shapes, strict=True)
        ]
        each = [torch.unsafe_split(column, count) for column in columns]
        firsts = range(first, first + count * batches, count)
        self._made = [(at, list(own)) for at, *own in zip(firsts, *each, strict=True)][::-1]
        self._order = order

    def _follow(self, order: Any) -> None:
        """Let the current stream wait for the one that made `order` and the next batches."""
        import torch

        current = torch.cuda.current_stream(self.device)
        if current != self._stream:
            current.wait_stream(self._stream)
            for tensor in (order, *(self._made[-1][1] if self._made else ())):
                tensor.record_stream(current)
            self._stream = current

    def replaced(self, batch: Sequence[Any], where: Any, columns: Sequence[Any]) -> list[Any]:
        for column, rows in zip(batch, columns, strict=True):
            memory = _gathered(column)
            column.view(memory).index_copy_(0, where, rows.view(memory))
        return list(batch)

    def close(self) -> None:
        self._columns, self._made, self._order, self._stream = [], [], None, None
        if self.place is not None:
            self.place.close()


def _gathered(column: Any) -> Any:
    """Return the dtype that torch gathers a column by: another of its size if torch must."""
    import torch

    known = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    return known.get(column.dtype, column.dtype)


class JaxRows:
    """Rows as arrays of jax, with jax's types."""

    longest = (1 << 31) - 1
    padded = True

    def __init__(self, device: Any) -> None:
        self.place: Place | None = JaxDevice(device)
        self.device = device
        self.name = str(device)
        self._columns: list[Any] = []
        self._rows = 0

    def free_bytes(self) -> int | None:
        memory = self.device.memory_stats() or {}
        if "bytes_limit" not in memory:
            return None
        return int(memory["bytes_limit"] - memory.get("bytes_in_use", 0))

    def taken(self, leaf: Any) -> Any:
        import jax

        return leaf if isinstance(leaf, jax.Array) else None

    def allocate(self, columns: Sequence[Any], rows: int) -> None:
        import jax.numpy as jnp

        self._rows = rows
        try:
            self._columns = [
                jnp.zeros((rows, *column.shape[1:]), column.dtype, device=self.device)
                for column in columns
            ]
        except RuntimeError as error:
            raise OutOfMemory(
                f"{self.name} has no memory for {rows} rows: {error}; give max_bytes, and the "
                "other rows stay in memory of the host",
                "device.resident",
            ) from None

    def write(self, first: int, columns: Sequence[Any]) -> None:
        self._columns = _jax_functions().write(self._columns, np.int32(first), list(columns))

    def scatter(self, order: Any, first: int, columns: Sequence[Any]) -> None:
        scatter = _jax_functions().scatter
        self._columns = scatter(self._columns, order, np.int32(first), list(columns))

    def settle(self) -> None:
        import jax

        jax.block_until_ready(self._columns)

    def order(self, first: int, count: int, indices: Indices) -> Any:
        import jax
        import jax.numpy as jnp

        with jax.default_device(self.device):
            positions = jnp.arange(first, first + count, dtype=jnp.uint32)
            order = indices(positions, jax_permuted).astype(jnp.int32)
            return jnp.minimum(order, self._rows - 1)

    def gather(self, order: Any, first: int, count: int, follow: int) -> list[Any]:
        return list(_jax_functions().gather(self._columns, order, np.int32(first), count))

    def replaced(self, batch: Sequence[Any], where: Any, columns: Sequence[Any]) -> list[Any]:
        return list(_jax_functions().replaced(list(batch), where, list(columns)))

    def close(self) -> None:
        self._columns = []


class _JaxFunctions:
    """Compiled functions, for any lists of columns."""

    def __init__(self) -> None:
        import jax

        slice_in, update_in = jax.lax.dynamic_slice_in_dim, jax.lax.dynamic_update_slice_in_dim

        def write(memory: Any, first: Any, columns: Any) -> Any:
            return [update_in(m, c, first, 0) for m, c in zip(memory, columns, strict=True)]

        def scatter(memory: Any, order: Any, first: Any, columns: Any) -> Any:
            rows = slice_in(order, first, columns[0].shape[0])
            return [m.at[rows].set(c) for m, c in zip(memory, columns, strict=True)]

        def gather(memory: Any, order: Any, first: Any, count: int) -> Any:
            rows = slice_in(order, first, count)
            return [m.at[rows].get(mode="promise_in_bounds") for m in memory]

        def replaced(batch: Any, where: Any, columns: Any) -> Any:
            return [b.at[where].set(c, mode="drop") for b, c in zip(batch, columns, strict=True)]

        self.write = jax.jit(write, donate_argnums=0)
        self.scatter = jax.jit(scatter, donate_argnums=0)
        self.gather = jax.jit(gather, static_argnums=3)
        self.replaced = jax.jit(replaced)


_jax_functions = functools.cache(_JaxFunctions)
