"""Runs of torch steps as one CUDA graph: captured once for each number of them, then replayed.

As PyTorch's notes on CUDA semantics have it ("CUDA Graphs", whole-network capture). The first run
of a length and of a form of batch is made as it is, beside the current stream: it allocates what
the optimizer and the libraries keep. The second one is captured, which runs nothing, and replayed;
so are all that follow. Every run is training, none is made for warming up only.

A graph reads its batches from, and writes its metrics to, memory of its own: batches are copied
into it, metrics out of it, on the device and in the stream's order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..base.nests import leaves_of, mapped
from ..base.notes import add_note
from ..errors import InvalidArgument
from .alike import columns_of, form_of
from .loop_runs import Run, Said, mark, rows_of_columns, said_of
from .rows import rows_of
from .super_batches import SuperBatch

Replay = Callable[[], object]

_REMEDY = (
    "in a run of Loop that was captured as one CUDA graph: the step must not look at values "
    "(.item(), .cpu(), if of a tensor), an optimizer of torch's needs capturable=True"
)


class Device(Protocol):
    """What runs and captures; a GPU, and what stands for one in tests."""

    def has(self, leaf: Any) -> bool:
        """Whether the leaf is a tensor there."""

    def beside(self, work: Callable[[], object]) -> None:
        """Make the work as it is, apart from the current stream, which goes on after it."""

    def capture(self, work: Callable[[], object]) -> Replay:
        """Note the work, which is called once and runs nothing; return what runs it."""

    def mark(self) -> Callable[[], object]:
        """Return what waits until all is done that was asked for so far."""


class Cuda:
    """The current device of torch's."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._tensor = torch.Tensor
        self._streams: dict[int, Any] = {}  # that graphs are captured on, by device

    def has(self, leaf: Any) -> bool:
        here = isinstance(leaf, self._tensor) and leaf.is_cuda
        return here and leaf.device.index == self._cuda.current_device()

    def beside(self, work: Callable[[], object]) -> None:
        stream = self._cuda.Stream()
        stream.wait_stream(self._cuda.current_stream())
        try:
            with self._cuda.stream(stream):
                work()
        finally:
            self._cuda.current_stream().wait_stream(stream)

    def capture(self, work: Callable[[], object]) -> Replay:
        graph = self._cuda.CUDAGraph()
        here = self._cuda.current_device()
        if here not in self._streams:  # torch's own for all graphs may be another device's
            self._streams[here] = self._cuda.Stream()
        # Other threads may use the device meanwhile: they make the next batches.
        with self._cuda.graph(graph, stream=self._streams[here], capture_error_mode="thread_local"):
            work()
        replay: Replay = graph.replay
        return replay

    def mark(self) -> Callable[[], object]:
        return mark(self._cuda)


class _Captured(NamedTuple):
    inputs: SuperBatch
    said: list[Any]  # the metrics of each step
    replay: Replay


def graph_of(step: Any, state: Any) -> Graph:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise InvalidArgument("graph=True needs torch, and a CUDA device that it can use", "Loop")
    if state is not None:
        text = "a graph changes weights where they are; leave state= out, or graph=True"
        raise InvalidArgument(text, "Loop")
    return Graph(step)


class Graph(Run):
    """N steps as one graph, for each N and form of a batch."""

    def __init__(self, step: Callable[[Any], Any], device: Device | None = None) -> None:
        self._step = step
        self._device: Device = Cuda() if device is None else device
        self._known: dict[Any, _Captured | None] = {}  # None: was made once, as it is

    def __call__(self, batches: SuperBatch) -> Said:
        said: list[Any] = []
        try:
            key = self._key_of(batches)
            if key not in self._known:
                self._device.beside(lambda: said.extend(map(self._step, batches.each())))
                self._known[key] = None
                return said_of(said, None)._replace(wait=self._device.mark())
            captured = self._known[key] or self._capture(key, batches)
            _copy(batches, captured.inputs)
            captured.replay()
            return self._said(captured.said)
        except Exception as error:
            return said_of(said, error)

    def _key_of(self, batches: SuperBatch) -> Any:
        whole = batches.whole is not None
        each = [batches.whole] if whole else batches.parts[: batches.steps]
        for leaf in leaves_of(each):
            if not self._device.has(leaf):
                kind = type(leaf)
                raise InvalidArgument(
                    f"a batch has a {kind.__module__}.{kind.__name__} that is not on the current "
                    "CUDA device; with graph=True let convert= make tensors of arrays there",
                    "Loop",
                )
        if whole:
            each = [rows_of(batches.whole, 0, batches.size)]
        return batches.steps, batches.size, whole, repr([form_of(x, _form_of) for x in each])

    def _capture(self, key: Any, batches: SuperBatch) -> _Captured:
        inputs = _alike(batches)
        said: list[Any] = []
        try:
            replay = self._device.capture(lambda: said.extend(map(self._step, inputs.each())))
        except Exception as error:
            add_note(error, _REMEDY)
            raise
        for metrics in said:
            for leaf in () if metrics is None else leaves_of(metrics):
                if not self._device.has(leaf):
                    raise InvalidArgument(
                        f"a step says {leaf!r}; what a step of a CUDA graph says are tensors of "
                        "its device: anything else stays what it was when it was captured",
                        "Loop",
                    )
        found = self._known[key] = _Captured(inputs, [mapped(_detached, m) for m in said], replay)
        return found

    def _said(self, said: list[Any]) -> Said:
        """Take copies: the next replay writes where these are."""
        count = len(said)
        if all(metrics is None for metrics in said):
            return Said(count, lambda: said, lambda: None, None, self._device.mark())
        torch = sys.modules["torch"]
        columns = [torch.stack(list(c)) for c in columns_of(said, "metrics", "Loop")]
        wait = self._device.mark()

        def nest() -> Any:
            given = iter(column.cpu().numpy() for column in columns)
            return mapped(lambda _: next(given), said[0])

        def each() -> list[Any]:
            return rows_of_columns(nest(), count)

        return Said(count, each, lambda: each()[-1], None, wait)


def _form_of(leaf: Any) -> Any:
    return tuple(leaf.shape), leaf.dtype, leaf.device


def _detached(leaf: Any) -> Any:
    return leaf if leaf is None else leaf.detach()


def _alike(batches: SuperBatch) -> SuperBatch:
    """Make room for such batches."""
    if batches.whole is None:
        parts = [mapped(_room, part) for part in batches.parts[: batches.steps]]
        return batches._replace(parts=parts)
    rows = batches.steps * batches.size
    return batches._replace(whole=mapped(_room, rows_of(batches.whole, 0, rows)))


def _room(leaf: Any) -> Any:
    return leaf.detach().clone()


def _copy(batches: SuperBatch, into: SuperBatch) -> None:
    if batches.whole is None:
        for part, room in zip(batches.parts, into.parts, strict=False):
            _copy_leaves(part, room)
        return
    _copy_leaves(rows_of(batches.whole, 0, batches.steps * batches.size), into.whole)


def _copy_leaves(batch: Any, room: Any) -> None:
    for place, leaf in columns_of([room, batch], "batches of a run", "Loop"):
        place.copy_(leaf)
