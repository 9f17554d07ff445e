"""Publish a tree of jax arrays, and read those of another process.

>>> penstock.jax.publish("actor", parameters)  # in the learner, after updates
>>> model = penstock.jax.attach("actor", like=parameters)  # in any other process of this user
>>> with model.read() as (version, parameters): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from .. import _engine
from ..errors import InvalidArgument
from ..train.publish import Model
from ..train.publish import attach as attach_blocks
from ..train.publish import publish as publish_blocks

__all__ = ["JaxModel", "attach", "publish"]


def publish(name: str, tree: Any) -> int:
    """Publish a tree of arrays, such as a model's parameters, as `penstock.train.publish`.

    Arrays may be on any device, whole in this process. Numbers become float32. A float32 array on a
    CUDA device is copied once, from there into the memory that readers read.

    Returns
    -------
    int
        The version: 0, or the last version + 1.

    Raises
    ------
    InvalidArgument, OutOfMemory
        As `penstock.train.publish`; another tree than before; a leaf that is not an array of real
        numbers.
    """
    blocks = _blocks(tree, "publish")
    return publish_blocks(name, blocks)


class JaxModel(Model):
    """A tree of weights that another process publishes. Made by `attach`."""

    def __init__(self, name: str, model: _engine.ReadModel, like: Any, place: Any) -> None:
        super().__init__(name, model)
        leaves, self._tree = jax.tree.flatten(like)
        self._types = [
            np.asarray(leaf).dtype if np.isscalar(leaf) else leaf.dtype for leaf in leaves
        ]
        self._place = place

    @contextmanager
    def read(self, max_lag: int = 0) -> Iterator[tuple[int, Any]]:
        """Hold the newest version: ``with model.read() as (version, tree)``.

        ``tree`` is like the one given to `attach`, of jax arrays. They stay valid after the block;
        on the CPU they may be views of the published memory and then hold their version.

        Parameters
        ----------
        max_lag : int
            As for `penstock.train.Model.read`.
        """
        with super().read(max_lag) as (version, weights):
            arrays = jax.device_put(list(weights.values()), self._place)
            cast = [array.astype(of) for array, of in zip(arrays, self._types, strict=True)]
            yield version, jax.tree.unflatten(self._tree, cast)


def attach(
    name: str,
    like: Any,
    *,
    device: jax.Device | None = None,
    sharding: jax.sharding.Sharding | None = None,
    timeout: float | None = 60.0,
) -> JaxModel:
    """Attach to the tree of arrays that a process of this user publishes under a name.

    Parameters
    ----------
    like : tree of arrays
        The structure, shapes and types of the weights: the model's own parameters, or
        ``jax.eval_shape`` of them.
    device, sharding : optional
        Where the arrays are; by default jax's default device.
    timeout : float, optional
        Seconds to wait for the first version; None: no limit, 0: do not wait.

    Raises
    ------
    Timeout, InvalidArgument, OutOfMemory
        As `penstock.train.attach`; both a device and a sharding.
    """
    if device is not None and sharding is not None:
        raise InvalidArgument("give a device or a sharding, not both", "attach")
    blocks = _blocks(like, "attach")
    shapes = {block: tuple(np.shape(leaf)) for block, leaf in blocks.items()}
    model = attach_blocks(name, shapes, timeout)
    return JaxModel(name, model._model, like, device if sharding is None else sharding)


def _blocks(tree: Any, operation: str) -> dict[str, Any]:
    """Return the leaves by their paths, in the tree's order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    if not leaves:
        raise InvalidArgument("the tree has no arrays", operation)
    return {"tree" + jax.tree_util.keystr(path): leaf for path, leaf in leaves}
