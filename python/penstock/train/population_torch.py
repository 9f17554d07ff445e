"""Two ways to compute the gradients of a population of torch modules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch

from ..base.nests import mapped
from ..errors import InvalidArgument
from .member_rows import MemberRow, MemberRows
from .steps import OneThreadEach

__all__ = ["Concurrent", "Stacked", "Strategy", "initial_weights", "modules_over", "tensors_of"]

Loss = Callable[[Any, Any], Any]


class Strategy(Protocol):
    """Computes one step's losses and gradients; the gradients go to the members' rows.

    `rows`: the rows to compute. `batches`: a batch that all of them share, or one for each.
    """

    def step(self, rows: Sequence[int], batches: Any, shared: bool) -> list[Any]:
        """Return a loss, or an exception, for each row."""

    def close(self) -> None: ...


def tensors_of(batch: Any) -> tuple[Any, Any]:
    """A batch as (inputs, targets) of tensors, without copies if possible."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InvalidArgument(
            f"a batch is a {type(batch).__name__}; a population wants (inputs, targets). Let the "
            "feed's last function make a pair of it",
            "Population",
        )
    inputs, targets = mapped(torch.as_tensor, batch)
    return inputs, targets


def initial_weights(make: Callable[[], Any], seed: int) -> Any:
    """A new module from `make`, with torch's generator at `seed`; the generator is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def check_module(module: Any) -> dict[str, Any]:
    """The parameters of a module that can be a member's."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(
            f"the model is a {type(module).__name__}; give a torch.nn.Module, or a function that "
            "makes one",
            "Population",
        )
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not found:
        raise InvalidArgument("the module has no parameter that requires a gradient", "Population")
    for name, parameter in found.items():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise InvalidArgument(
                f"parameter {name!r} is {parameter.dtype} on {parameter.device}; a population has "
                "float32 on the CPU",
                "Population",
            )
    return found


def modules_over(module: Any, rows: Sequence[MemberRow]) -> list[Any]:
    """A copy of the module for each row, whose parameters and gradients are views of the row."""
    made = []
    for row in rows:
        own = copy.deepcopy(module)
        for name, parameter in own.named_parameters():
            if parameter.requires_grad:
                parameter.data = torch.from_numpy(row.parameters[name])
                parameter.grad = torch.from_numpy(row.gradients[name])
        made.append(own)
    return made


def view_of(module: Any) -> Any:
    """Another module with the same parameters and buffers."""
    kept = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in kept})


class Concurrent:
    """Threads compute the members' steps one by one, each with one of torch's threads."""

    def __init__(self, modules: Sequence[Any], rows: MemberRows, loss: Loss, threads: int) -> None:
        self._modules = modules
        self._rows = rows
        self._loss = loss
        self._own = [
            [(p, p.grad) for p in module.parameters() if p.requires_grad] for module in modules
        ]
        self._threads = threads
        self._one_thread_each = OneThreadEach()
        self._one_thread_each.__enter__()
        self._pool = ThreadPoolExecutor(
            threads, "penstock-member", initializer=self._one_thread_each.here
        )

    def step(self, rows: Sequence[int], batches: Any, shared: bool) -> list[Any]:
        losses: list[Any] = [None] * len(rows)
        turns = iter(range(len(rows)))  # next() of it is atomic

        def work() -> None:
            for turn in turns:
                losses[turn] = self._one(rows[turn], batches if shared else batches[turn])

        jobs = [self._pool.submit(work) for _ in range(min(self._threads, len(rows)))]
        for job in jobs:
            job.result()
        return losses

    def _one(self, row: int, batch: Any) -> Any:
        try:
            inputs, targets = batch
            self._rows.gradients[row] = 0.0
            loss = self._loss(self._modules[row](inputs), targets)
            loss.backward()
            for parameter, place in self._own[row]:
                if parameter.grad is not place:  # torch, or the user's loss, gave it another
                    if parameter.grad is not None:
                        place.copy_(parameter.grad)
                    parameter.grad = place
            return float(loss.detach())
        except Exception as error:
            return error

    def close(self) -> None:
        self._pool.shutdown()
        self._one_thread_each.__exit__()


class Stacked:
    """One call computes all members, by `torch.func.vmap` over their stacked weights.

    A compiled call is for one number of rows: it also computes rows that do not train, as long as
    these are at most half. Then the call that is not compiled goes on with the others alone.
    """

    def __init__(self, module: Any, rows: MemberRows, loss: Loss, compiled: bool) -> None:
        if any(True for _ in module.buffers()):
            raise InvalidArgument(
                "the module has buffers, such as running means, which vmap cannot change: use "
                "strategy='concurrent'",
                "Population",
            )
        self._whole = torch.from_numpy(rows.floats)
        self._gradients = torch.from_numpy(rows.gradients)
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

    def _views(self, floats: Any) -> dict[str, Any]:
        """The blocks of all rows, stacked: shape (rows, *shape)."""
        views = {}
        for name, shape in self._rows.shapes.items():
            at, size = self._rows.offsets[name], math.prod(shape)
            views[name] = floats[:, at : at + size].unflatten(1, shape) if shape else floats[:, at]
        return views

    def step(self, rows: Sequence[int], batches: Any, shared: bool) -> list[Any]:
        count = len(self._whole)
        every = len(rows) == count or (self._compiled and 2 * len(rows) >= count)
        try:
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
            gradients, losses = compute(self._views(floats), inputs, targets)
        except Exception as error:
            if len(rows) == 1:
                return [error]
            # Batches of different sizes, or a batch that fails: each member alone, so that a
            # member's exception is its own.
            return [
                self.step([row], batches if shared else [batches[n]], shared)[0]
                for n, row in enumerate(rows)
            ]
        for name, view in self._views(to).items():
            view.copy_(gradients[name])
        values: list[Any] = losses.detach().tolist()
        if every:
            return [values[row] for row in rows]
        self._gradients[list(rows)] = to
        return values

    def close(self) -> None:
        pass


def buffers_of(module: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of a module's buffers."""
    return {name: buffer.detach().numpy().copy() for name, buffer in module.named_buffers()}


def set_buffers(module: Any, buffers: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, buffer in module.named_buffers():
        if name in buffers:
            with torch.no_grad():
                buffer.copy_(torch.from_numpy(buffers[name]))
