"""The architecture of a population of JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidArgument
from .member_rows import HostRows, MemberRows, available_bytes
from .population_strategies import Buffers, Weights

__all__ = ["JaxFunctions"]


class JaxFunctions:
    """An architecture of two functions: ``init(key)`` and ``apply(weights, inputs)``.

    The compiled calls take rows as NumPy arrays: on the CPU, JAX reads the aligned memory of the
    slab in place. Each call is waited for, so no computation reads a row while the engine updates
    it, and no JAX array over the slab outlives the call.

    `model`: the two functions. `seed`: of the first member.
    """

    def __init__(
        self,
        model: Any,
        seed: int,
        loss: Callable[[Any, Any], Any] | None,
        compiled: bool,
        device: Any = None,
    ) -> None:
        if device is not None:
            raise InvalidArgument(
                "device= is for torch; JAX computes on its default device: set "
                "jax.config.update('jax_default_device', ...)",
                "Population",
            )
        if len(model) != 2 or not all(map(callable, model)):
            types = ", ".join(type(part).__name__ for part in model)
            raise InvalidArgument(
                f"the model is ({types}); give two functions for JAX: init(key), which returns the "
                "weights, and apply(weights, inputs), which returns the outputs",
                "Population",
            )
        if compiled:
            raise InvalidArgument(
                "compile=True is for torch; calls of JAX are always compiled: leave it out",
                "Population",
            )
        self._init, self._apply = model
        self._loss = loss or _cross_entropy
        self.name = getattr(self._apply, "__qualname__", type(self._apply).__name__)
        weights = self._made(seed)
        self._tree = jax.tree.structure(weights)
        self.shapes = {name: array.shape for name, array in _named(weights).items()}

    def _made(self, seed: int) -> Any:
        if seed >= 1 << 32:
            raise InvalidArgument(
                f"the seed {seed} is too large for a key of JAX; give seeds below 2**32",
                "Population",
            )
        return self._init(jax.random.key(seed))

    def initial(self, seed: int) -> tuple[Weights, Buffers]:
        return _named(self._made(seed)), {}

    def make_rows(self, count: int, state_slabs: int) -> MemberRows:
        self._rows = HostRows(count, self.shapes, state_slabs)
        return self._rows

    def pair(self, batch: Any) -> tuple[Any, Any]:
        inputs, targets = jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), batch
        )
        return inputs, targets

    def available_bytes(self) -> int:
        return available_bytes()

    def begin(self) -> None:
        pass

    def single(self) -> Callable[[int, Any], float]:
        rows, call = self._rows, jax.jit(self._computed)

        def compute(row: int, batch: Any) -> float:
            loss, gradient = call(rows.floats[row], *batch)
            rows.gradients[row] = np.asarray(gradient)  # waits
            return float(loss)

        return compute

    def stacked(self) -> Callable[[Sequence[int], Any, bool], list[float]]:
        # Each number of rows is compiled, so there are few: all, half, a quarter, ... Rows that do
        # not train fill up.
        rows, count = self._rows, self._rows.count

        def each(floats: Any, batches: Any) -> Any:
            inputs, targets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
            return jax.vmap(self._computed)(floats, inputs, targets)

        of_each, of_shared = jax.jit(each), jax.jit(jax.vmap(self._computed, (0, None, None)))

        def compute(chosen: Sequence[int], batches: Any, shared: bool) -> list[float]:
            size = count
            while size > 1 and (size + 1) // 2 >= len(chosen):
                size = (size + 1) // 2
            order: Sequence[int]
            if size == count:  # in place
                order, places, floats = range(count), chosen, rows.floats
            else:
                order = [*chosen, *[chosen[0]] * (size - len(chosen))]
                places, floats = range(len(chosen)), rows.floats[order, : rows.stride]
            if shared:
                losses, gradients = of_shared(floats, *batches)
            else:
                given = dict(zip(chosen, batches, strict=True))
                losses, gradients = of_each(floats, [given.get(r, batches[0]) for r in order])
            gradients = np.asarray(gradients)  # waits
            for row, place in zip(chosen, places, strict=True):
                rows.gradients[row] = gradients[place]
            values: list[float] = np.asarray(losses).tolist()
            return [values[place] for place in places]

        return compute

    def module(self, row: int) -> Any:
        return self.copy_of(self._rows.views(self._rows.floats[row]), {})

    def copy_of(self, weights: Weights, buffers: Buffers) -> Any:
        # JAX may use the memory that it is given: copy first.
        return self._tree.unflatten([jnp.asarray(array.copy()) for array in weights.values()])

    def buffers(self, row: int) -> dict[str, np.ndarray[Any, Any]]:
        return {}

    def set_buffers(self, row: int, buffers: Buffers) -> None:
        pass

    # ---- inside a call that JAX compiles ---------------------------------------------------------

    def _computed(self, floats: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The loss, and the gradient laid out as in a row, of a row: its first part is weights."""

        def loss_of(weights: Any) -> Any:
            return self._loss(self._apply(weights, inputs), targets)

        leaves = self._rows.views(floats).values()
        loss, gradient = jax.value_and_grad(loss_of)(self._tree.unflatten(leaves))
        parts, end = [], 0
        offsets = self._rows.offsets.values()
        for offset, leaf in zip(offsets, jax.tree.leaves(gradient), strict=True):
            parts += [jnp.zeros(offset - end, np.float32), leaf.reshape(-1)]
            end = offset + leaf.size
        parts.append(jnp.zeros(self._rows.stride - end, np.float32))
        return loss, jnp.concatenate(parts)


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    """The mean softmax cross-entropy of integer labels; the last axis of outputs is the classes."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[..., None], -1)
    return -chosen.mean()


def _named(weights: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a tree by their paths, as NumPy arrays."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(weights):
        name = f"weights{jax.tree_util.keystr(path)}"
        if str(getattr(leaf, "dtype", "")) != "float32":
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise InvalidArgument(
                f"init returns {kind} at {name}; a population trains arrays of float32: convert "
                "it, or keep it out of the weights",
                "Population",
            )
        found[name] = np.asarray(leaf)
    if not found:
        raise InvalidArgument(
            f"init returns a {type(weights).__name__} without arrays; give a tree of float32",
            "Population",
        )
    return found
