"""Runs of torch steps as one CUDA graph: captured once for each number of steps, then replayed.

As in PyTorch's notes on CUDA semantics ("CUDA Graphs", whole-network capture). For each length and
form of batch, the first run is executed normally on a side stream: the optimizer and the libraries
allocate their memory. The second run is captured, which executes nothing, and replayed; so are all
later ones. Every run is training: there are no warm-up runs.

A graph has memory of its own for batches and metrics: batches are copied in and metrics are copied
out, on the device, in stream order. Batches that arrive on the device go into a ring of this memory
at once, one place for each step of a run: their feed needs no more buffers than for a plain loop.
A run's metrics are copied to the host behind it; a check-in waits for the last of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..base.nests import leaves_of, mapped
from ..base.notes import add_note
from ..errors import InvalidArgument
from .loop_runs import Runner, RunResult, mark, result_of, rows_of_columns
from .rows import columns_of, form_of, rows_of
from .super_batches import SuperBatch

Replay = Callable[[], object]

_REMEDY = (
    "in a run of Loop that was captured as one CUDA graph: the step must not read values "
    "(.item(), .cpu(), if of a tensor), and torch's optimizers need capturable=True"
)


class Device(Protocol):
    """Runs and captures work: a GPU, or a fake in tests."""

    def has(self, leaf: Any) -> bool:
        """Whether the leaf is a tensor on the device."""

    def beside(self, work: Callable[[], object]) -> None:
        """Execute the work on a side stream, for which the current stream waits."""

    def capture(self, work: Callable[[], object]) -> Replay:
        """Capture the work, which executes nothing; return a function that executes it."""

    def mark(self) -> Callable[[], object]:
        """Return a function that waits for all work queued so far."""

    def to_host(self, tensor: Any) -> Any:
        """Begin a copy to the host; it is there when the next mark has been waited for."""


class Cuda:
    """torch's current CUDA device."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._tensor = torch.Tensor
        self._streams: dict[int, Any] = {}  # streams for capture, by device

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
        if here not in self._streams:  # torch's default capture stream may be another device's
            self._streams[here] = self._cuda.Stream()
        # thread_local: other threads use the device meanwhile, for the next batches.
        with self._cuda.graph(graph, stream=self._streams[here], capture_error_mode="thread_local"):
            work()
        replay: Replay = graph.replay
        return replay

    def mark(self) -> Callable[[], object]:
        return mark(self._cuda)

    def to_host(self, tensor: Any) -> Any:
        import torch

        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return there.copy_(tensor, non_blocking=True)


class _Captured(NamedTuple):
    inputs: SuperBatch
    metrics_of_steps: list[Any]  # the metrics of each step
    replay: Replay


def graph_of(step: Any, state: Any) -> Graph:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise InvalidArgument("graph=True needs torch with a usable CUDA device", "Loop")
    if state is not None:
        text = "a graph changes weights in place; omit state= or graph=True"
        raise InvalidArgument(text, "Loop")
    return Graph(step)


class Graph(Runner):
    """Runs N steps as one graph, for each N and form of batch."""

    def __init__(self, step: Callable[[Any], Any], device: Device | None = None) -> None:
        self._step = step
        self._device: Device = Cuda() if device is None else device
        self._known: dict[Any, _Captured | None] = {}  # None: executed once, not captured yet
        # Memory for the batches of a run that arrive on the device, for each form of batch.
        self._rings: dict[str, list[Any]] = {}

    def keep(self, number: int, batch: Any) -> Any:
        """Copy a batch of the device into the ring, so that its feed may use its memory again."""
        if not all(self._device.has(leaf) for leaf in leaves_of(batch)):
            return batch  # refused when it is run
        ring = self._rings.setdefault(repr(form_of(batch, _form_of)), [])
        while len(ring) <= number:
            ring.append(None)  # those of other batches of the run may have another form
        if ring[number] is None:
            ring[number] = mapped(_clone, batch)
        else:
            _copy_leaves(batch, ring[number])
        return ring[number]

    def _is_in_place(self, batches: SuperBatch) -> bool:
        """Whether these are a ring's first batches."""
        if batches.whole is not None:
            return False
        ring = self._rings.get(repr(form_of(batches.parts[0], _form_of)), [])
        parts = batches.parts[: batches.steps]
        return len(ring) >= len(parts) and all(a is b for a, b in zip(parts, ring, strict=False))

    def __call__(self, batches: SuperBatch) -> RunResult:
        metrics_of_steps: list[Any] = []
        try:
            key = self._key_of(batches)
            if key not in self._known:
                self._device.beside(
                    lambda: metrics_of_steps.extend(map(self._run_once, batches.each()))
                )
                self._known[key] = None
                return result_of(metrics_of_steps, None)._replace(wait=self._device.mark())
            captured = self._known[key] or self._capture(key, batches)
            _copy(batches, captured.inputs)
            captured.replay()
            return self._result_of(captured.metrics_of_steps)
        except Exception as error:
            return result_of(metrics_of_steps, error)

    def _key_of(self, batches: SuperBatch) -> Any:
        whole = batches.whole is not None
        each = [batches.whole] if whole else batches.parts[: batches.steps]
        for leaf in leaves_of(each):
            if not self._device.has(leaf):
                kind = type(leaf)
                raise InvalidArgument(
                    f"a batch has a {kind.__module__}.{kind.__name__} that is not on the current "
                    "CUDA device; with graph=True convert= must make tensors on it",
                    "Loop",
                )
        if whole:
            each = [rows_of(batches.whole, 0, batches.size)]
        return batches.steps, batches.size, whole, repr([form_of(x, _form_of) for x in each])

    def _capture(self, key: Any, batches: SuperBatch) -> _Captured:
        # A ring's batches are the graph's own memory: nothing else writes to them.
        inputs = batches if self._is_in_place(batches) else _inputs_like(batches)
        metrics_of_steps: list[Any] = []
        try:
            replay = self._device.capture(
                lambda: metrics_of_steps.extend(map(self._step, inputs.each()))
            )
        except Exception as error:
            add_note(error, _REMEDY)
            raise
        for metrics in metrics_of_steps:
            for leaf in () if metrics is None else leaves_of(metrics):
                if not self._device.has(leaf):
                    raise InvalidArgument(
                        f"a step returned {leaf!r}; with graph=True it must return tensors of the "
                        "device, since other values do not change after the capture",
                        "Loop",
                    )
        found = self._known[key] = _Captured(
            inputs, [mapped(_detached, m) for m in metrics_of_steps], replay
        )
        return found

    def _result_of(self, metrics_of_steps: list[Any]) -> RunResult:
        """Copy the metrics: the next replay overwrites them."""
        count = len(metrics_of_steps)
        if all(metrics is None for metrics in metrics_of_steps):
            return RunResult(
                count, lambda: metrics_of_steps, lambda: None, None, self._device.mark()
            )
        torch = sys.modules["torch"]
        to_host = self._device.to_host
        columns = [
            to_host(torch.stack(list(column)))
            for column in columns_of(metrics_of_steps, "metrics", "Loop")
        ]
        wait = self._device.mark()

        def nest() -> Any:
            wait()
            given = iter(column.numpy() for column in columns)
            return mapped(lambda _: next(given), metrics_of_steps[0])

        def each() -> list[Any]:
            return rows_of_columns(nest(), count)

        return RunResult(count, each, lambda: each()[-1], None, wait)

    def _run_once(self, batch: Any) -> Any:
        """Run a step; its metrics may be views of the batch, whose memory is used again."""
        metrics = self._step(batch)
        if metrics is None or not self._rings:
            return metrics
        return mapped(lambda leaf: _clone(leaf) if self._device.has(leaf) else leaf, metrics)


def _form_of(leaf: Any) -> Any:
    return tuple(leaf.shape), leaf.dtype, leaf.device


def _detached(leaf: Any) -> Any:
    return leaf if leaf is None else leaf.detach()


def _inputs_like(batches: SuperBatch) -> SuperBatch:
    """Allocate memory for such batches."""
    if batches.whole is None:
        parts = [mapped(_clone, part) for part in batches.parts[: batches.steps]]
        return batches._replace(parts=parts)
    rows = batches.steps * batches.size
    return batches._replace(whole=mapped(_clone, rows_of(batches.whole, 0, rows)))


def _clone(leaf: Any) -> Any:
    return leaf.detach().clone()


def _copy(batches: SuperBatch, into: SuperBatch) -> None:
    if batches.whole is None:
        for part, target in zip(batches.parts, into.parts, strict=False):
            _copy_leaves(part, target)
        return
    _copy_leaves(rows_of(batches.whole, 0, batches.steps * batches.size), into.whole)


def _copy_leaves(batch: Any, target: Any) -> None:
    for place, leaf in columns_of([target, batch], "batches of a run", "Loop"):
        if place is not leaf:
            place.copy_(leaf)
