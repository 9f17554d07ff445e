"""The architecture of a population of torch modules."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..base.nests import mapped
from ..errors import InvalidArgument, OutOfMemory
from .device_rows import DeviceRows
from .member_rows import HostRows, MemberRows, available_bytes
from .population_strategies import Buffers, Weights
from .torch_module import trained

__all__ = ["TorchModules"]


class TorchModules:
    """An architecture of torch modules: each row has one, whose weights are views of the row.

    `model`: a module, or a function that makes one. `seed`: of the first member. `device`: where
    the members train; None: where the model's weights are.
    """

    def __init__(
        self,
        model: Any,
        seed: int,
        loss: Callable[[Any, Any], Any] | None,
        compiled: bool,
        device: Any = None,
    ) -> None:
        self._device: Any = None if device is None else _device_of(device)
        self._make = model
        if isinstance(model, torch.nn.Module):
            self._make = lambda: model
        elif not callable(model):
            raise _no_model(model)
        self._loss = loss or torch.nn.functional.cross_entropy
        self._compiled = compiled
        self._template = copy.deepcopy(self._made(seed))
        self._device = next(iter(_trained(self._template).values())).device
        self._streams = threading.local()  # of CUDA: a stream for each thread
        self._begun: Any = None
        self.name = type(self._template).__name__
        self.shapes = {name: tuple(p.shape) for name, p in _trained(self._template).items()}
        self._modules: list[Any] = []

    def _made(self, seed: int) -> Any:
        """A new module, with torch's generator at `seed`; the generator is put back."""
        with torch.random.fork_rng(devices=_generators()):
            torch.manual_seed(seed)
            module = self._make()
        if not isinstance(module, torch.nn.Module):
            raise _no_model(module)
        return module if self._device is None else copy.deepcopy(module).to(self._device)

    def initial(self, seed: int) -> tuple[Weights, Buffers]:
        module = self._made(seed)
        weights = {name: p.detach().cpu().numpy() for name, p in _trained(module).items()}
        return weights, _buffers_of(module)

    def make_rows(self, count: int, state_slabs: int) -> MemberRows:
        if _on_host(self._device):
            self._rows: MemberRows = HostRows(count, self.shapes, state_slabs)
        else:
            try:
                self._rows = DeviceRows(count, self.shapes, state_slabs, self._device)
            except RuntimeError as error:
                if "memory" not in str(error):
                    raise
                raise OutOfMemory(str(error), "Population") from error
        floats, gradients = _tensors(self._rows)
        for row in range(count):
            own = copy.deepcopy(self._template)
            weights, gradient = self._rows.views(floats[row]), self._rows.views(gradients[row])
            for name, parameter in _trained(own).items():
                parameter.data, parameter.grad = weights[name], gradient[name]
            self._modules.append(own)
        return self._rows

    def available_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        return available_bytes()

    def pair(self, batch: Any) -> tuple[Any, Any]:
        inputs, targets = mapped(
            lambda leaf: torch.as_tensor(leaf).to(self._device, non_blocking=True), batch
        )
        return inputs, targets

    def begin(self) -> None:
        if self._device.type == "cuda":
            self._begun = torch.cuda.current_stream(self._device).record_event()

    def single(self) -> Callable[[int, Any], float]:
        places = [[(p, p.grad) for p in _trained(module).values()] for module in self._modules]

        def compute(row: int, batch: Any) -> float:
            inputs, targets = batch
            self._rows.gradients[row] = 0.0
            loss = self._loss(self._modules[row](inputs), targets)
            loss.backward()
            for parameter, place in places[row]:
                if parameter.grad is not place:  # torch, or the user's loss, gave it another
                    if parameter.grad is not None:
                        place.copy_(parameter.grad)
                    parameter.grad = place
            return float(loss.detach())

        def on_own_stream(row: int, batch: Any) -> float:
            # float() in compute() waits for the stream: the caller's work comes after it.
            own = self._streams
            if not hasattr(own, "stream"):
                own.stream = torch.cuda.Stream(self._device)
            with torch.cuda.stream(own.stream):
                own.stream.wait_event(self._begun)
                return compute(row, batch)

        return on_own_stream if self._device.type == "cuda" else compute

    def stacked(self) -> Callable[[Sequence[int], Any, bool], list[float]]:
        if any(True for _ in self._template.buffers()):
            raise InvalidArgument(
                "the module has buffers, such as running means, which vmap cannot change: use "
                "strategy='concurrent'",
                "Population",
            )
        return _StackedCall(self._template, self._rows, self._loss, self._compiled)

    def module(self, row: int) -> Any:
        module = self._modules[row]
        kept = [*module.parameters(), *module.buffers()]
        return copy.deepcopy(module, {id(tensor): tensor for tensor in kept})

    def copy_of(self, weights: Weights, buffers: Buffers) -> Any:
        made = copy.deepcopy(self._template)
        for name, parameter in _trained(made).items():
            parameter.data = torch.from_numpy(weights[name].copy()).to(self._device)
        _set_buffers(made, buffers)
        return made

    def buffers(self, row: int) -> dict[str, np.ndarray[Any, Any]]:
        return _buffers_of(self._modules[row])

    def set_buffers(self, row: int, buffers: Buffers) -> None:
        _set_buffers(self._modules[row], buffers)


class _StackedCall:
    """One call computes several rows, by `torch.func.vmap` over their stacked weights.

    A compiled call is for one number of rows: it also computes rows that do not train, as long as
    these are at most half. Then the call that is not compiled goes on with the others alone.
    """

    def __init__(self, module: Any, rows: MemberRows, loss: Any, compiled: bool) -> None:
        self._whole, self._gradients = _tensors(rows)
        self._rows = rows

        def loss_of(weights: dict[str, Any], inputs: Any, targets: Any) -> Any:
            return loss(torch.func.functional_call(module, weights, (inputs,)), targets)

        compute = torch.func.grad_and_value(loss_of)
        self._shared = torch.func.vmap(compute, (0, None, None), randomness="different")
        self._each = torch.func.vmap(compute, (0, 0, 0), randomness="different")
        self._compiled = compiled
        self._whole_shared, self._whole_each = self._shared, self._each
        if compiled:
            self._whole_shared = torch.compile(self._shared, dynamic=False)
            self._whole_each = torch.compile(self._each, dynamic=False)

    def __call__(self, rows: Sequence[int], batches: Any, shared: bool) -> list[float]:
        count = len(self._whole)
        every = len(rows) == count or (self._compiled and 2 * len(rows) >= count)
        if shared:
            inputs, targets = batches
        else:
            given = dict(zip(rows, batches, strict=True))
            order = range(count) if every else rows
            wanted = [given.get(row, batches[0]) for row in order]
            inputs, targets = (torch.stack(part) for part in zip(*wanted, strict=True))
        if every:
            floats, to = self._whole, self._gradients
            compute = self._whole_shared if shared else self._whole_each
        else:
            floats = self._whole[list(rows)]
            to = self._gradients.new_zeros(len(rows), self._rows.stride)
            compute = self._shared if shared else self._each
        gradients, losses = compute(self._rows.views(floats), inputs, targets)
        for name, view in self._rows.views(to).items():
            view.copy_(gradients[name])
        values: list[float] = losses.detach().tolist()
        if every:
            return [values[row] for row in rows]
        self._gradients[list(rows)] = to
        return values


def _no_model(model: Any) -> InvalidArgument:
    return InvalidArgument(
        f"the model is a {type(model).__name__}; give a torch.nn.Module, or a function that makes "
        "one; for JAX, a pair of functions (init, apply)",
        "Population",
    )


def _device_of(device: Any) -> Any:
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InvalidArgument(
            f"device is {device!r}, which torch cannot use: {error}", "Population"
        ) from error
    return found


def _on_host(device: Any) -> bool:
    return bool(device.type == "cpu")


def _generators() -> list[Any]:
    """The devices whose random numbers `torch.manual_seed` sets, and a module may draw."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return list(range(torch.cuda.device_count()))


def _tensors(rows: MemberRows) -> tuple[Any, Any]:
    if isinstance(rows, HostRows):
        return torch.from_numpy(rows.floats), torch.from_numpy(rows.gradients)
    return rows.floats, rows.gradients


def _trained(module: Any) -> dict[str, Any]:
    """The parameters of a module that are a member's weights."""
    return trained(module, "Population")


def _buffers_of(module: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of a module's buffers."""
    return {name: buffer.detach().cpu().numpy().copy() for name, buffer in module.named_buffers()}


def _set_buffers(module: Any, buffers: Buffers) -> None:
    for name, buffer in module.named_buffers():
        if name in buffers:
            with torch.no_grad():
                buffer.copy_(torch.from_numpy(buffers[name]))
