"""Publish a Keras model's weights, and follow those of another process.

>>> penstock.keras.publish("actor", model)  # in the learner, after updates
>>> follower = penstock.keras.attach("actor", model)  # in any other process of this user
>>> follower.update()  # before predicting
"""

from __future__ import annotations

from typing import Any

import keras

from ..errors import InvalidArgument
from ..train.publish import Follower
from ..train.publish import attach as attach_blocks
from ..train.publish import publish as publish_blocks

__all__ = ["attach", "publish"]


def publish(name: str, model: keras.Model) -> int:
    """Publish ``model.weights``, as `penstock.train.publish`. Any backend, any device.

    Numbers become float32.

    Returns
    -------
    int
        The version: 0, or the last version + 1.

    Raises
    ------
    InvalidArgument, OutOfMemory
        As `penstock.train.publish`; a model that is not built, or has other weights than before.
    """
    weights = _weights(model, "publish")
    return publish_blocks(name, {block: weight.value for block, weight in weights.items()})


def attach(name: str, model: keras.Model, timeout: float | None = 60.0) -> Follower:
    """Follow the weights that another process publishes, and load them into `model`.

    Parameters
    ----------
    model : keras.Model
        Built, of the same layers as the published one; its backend may be another one.
    timeout : float, optional
        Seconds to wait for the first version; None: no limit, 0: do not wait.

    Raises
    ------
    Timeout, InvalidArgument, OutOfMemory
        As `penstock.train.attach`.
    """
    shapes = {block: tuple(each.shape) for block, each in _weights(model, "attach").items()}

    def load(weights: dict[str, Any]) -> None:
        for block, weight in _weights(model, "attach").items():
            weight.assign(weights[block])

    return Follower(attach_blocks(name, shapes, timeout), load)


def _weights(model: Any, operation: str) -> dict[str, Any]:
    """Return the variables by names that do not depend on what else a process has built."""
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"model is a {type(model).__name__}; give a Keras model", operation)
    if not model.built or not model.weights:
        raise InvalidArgument(
            "the model has no weights yet; build it, or call it on a batch", operation
        )
    return {f"{place} {weight.name}": weight for place, weight in enumerate(model.weights)}
