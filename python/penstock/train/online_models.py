"""The models of Online: objects, Keras models and torch modules behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.arguments import integer_list
from ..base.conventions import name_of
from ..base.nests import mapped
from ..errors import InvalidArgument
from .rows import array_of


class OwnModel:
    """An object with ``predict`` and ``train``."""

    def __init__(self, model: Any, sizes: list[int]) -> None:
        self._model, self._sizes = model, sizes

    @property
    def restorable(self) -> bool:
        return hasattr(self._model, "state") and hasattr(self._model, "restore")

    def predict(self, batch: Any, rows: int) -> Any:
        if not self._sizes:
            return self._model.predict(batch)
        predictions = self._model.predict(_padded(batch, rows, self._size(rows)))
        return mapped(lambda leaf: leaf[:rows], predictions)

    def train(self, batch: Any, rows: int) -> Any:
        if not self._sizes:
            return self._model.train(batch)
        size = self._size(rows)
        return self._model.train(_padded(batch, rows, size), _weights(rows, size))

    def state(self) -> Any:
        return self._model.state()

    def restore(self, state: Any) -> None:
        self._model.restore(state)

    def _size(self, rows: int) -> int:
        return next((size for size in self._sizes if size >= rows), rows)


class KerasModel(OwnModel):
    """A compiled Keras model; a batch is ``(x, y)``."""

    restorable = True

    def predict(self, batch: Any, rows: int) -> Any:
        x, _ = batch
        predictions = self._model.predict_on_batch(_padded(x, rows, self._size(rows)))
        return mapped(lambda leaf: np.asarray(leaf)[:rows], predictions)

    def train(self, batch: Any, rows: int) -> Any:
        size = self._size(rows)
        x, y = _padded(batch, rows, size)
        # Always with weights: whether there are some is part of what is compiled.
        weights = _weights(rows, size) if self._sizes else None
        loss = self._model.train_on_batch(x, y, sample_weight=weights)
        return loss[0] if isinstance(loss, (list, tuple)) else loss

    def state(self) -> Any:
        optimizer = self._model.optimizer
        return {
            "weights": [np.asarray(array_of(each)) for each in self._model.get_weights()],
            "optimizer": [array_of(each.value) for each in optimizer.variables],
        }

    def restore(self, state: Any) -> None:
        self._model.set_weights(state["weights"])
        optimizer = self._model.optimizer
        if len(optimizer.variables) < len(state["optimizer"]):
            optimizer.build(self._model.trainable_variables)
        for variable, value in zip(optimizer.variables, state["optimizer"], strict=True):
            variable.assign(value)


class TorchModel(OwnModel):
    """A torch module with its optimizer and loss; a batch is ``(x, y)``."""

    restorable = True

    def __init__(self, module: Any, optimizer: Any, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__(module, [])
        self._optimizer, self._loss = optimizer, loss

    def predict(self, batch: Any, rows: int) -> Any:
        import torch

        x, _ = self._tensors(batch)
        self._model.eval()
        with torch.inference_mode():
            return self._model(x)

    def train(self, batch: Any, rows: int) -> Any:
        x, y = self._tensors(batch)
        self._model.train()
        self._optimizer.zero_grad()
        loss = self._loss(self._model(x), y)
        loss.backward()
        self._optimizer.step()
        return loss

    def _tensors(self, batch: Any) -> Any:
        """The batch with its NumPy arrays as tensors on the module's device."""
        import torch

        device = next((p.device for p in self._model.parameters()), None)

        def tensor(leaf: Any) -> Any:
            return torch.as_tensor(leaf, device=device) if isinstance(leaf, np.ndarray) else leaf

        return mapped(tensor, batch)

    def state(self) -> Any:
        import torch

        def plain(leaf: Any) -> Any:  # NumPy has no bfloat16; loading converts back
            return leaf.float() if getattr(leaf, "dtype", None) == torch.bfloat16 else leaf

        return {
            "module": mapped(plain, dict(self._model.state_dict())),
            "optimizer": mapped(plain, self._optimizer.state_dict()),
        }

    def restore(self, state: Any) -> None:
        import torch

        def tensor(leaf: Any) -> Any:
            return torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf

        self._model.load_state_dict(mapped(tensor, state["module"]))
        self._optimizer.load_state_dict(mapped(tensor, state["optimizer"]))


def model_of(
    model: Any, optimizer: Any, loss: Any, max_batch: int, pad_to: Sequence[int] | None
) -> OwnModel:
    sizes = sorted(integer_list("pad_to", pad_to, 1, "Online")) if pad_to is not None else []
    if sizes and sizes[-1] < max_batch:
        raise InvalidArgument(
            f"max_batch is {max_batch}, above the largest size of pad_to, {sizes[-1]}; add it",
            "Online",
        )
    if hasattr(model, "train_on_batch"):
        import keras

        if getattr(model, "optimizer", None) is None:
            raise InvalidArgument("the Keras model is not compiled: call compile()", "Online")
        if pad_to is None and keras.backend.backend() != "torch":
            sizes = [4**power for power in range(13) if 4**power < max_batch] + [max_batch]
        return KerasModel(model, sizes)
    if hasattr(model, "named_parameters"):
        if optimizer is None or loss is None:
            raise InvalidArgument("a torch module needs optimizer= and loss=", "Online")
        if sizes:
            raise InvalidArgument("a torch module takes any size; leave out pad_to", "Online")
        return TorchModel(model, optimizer, loss)
    for method in ("predict", "train"):
        if not callable(getattr(model, method, None)):
            raise InvalidArgument(
                f"{name_of(model)} has no {method}(); give an object with predict(batch) and "
                "train(batch), a Keras model or a torch module",
                "Online",
            )
    return OwnModel(model, sizes)


def _padded(batch: Any, rows: int, size: int) -> Any:
    def padded(leaf: Any) -> Any:
        array = array_of(leaf)
        if array.ndim == 0 or len(array) != rows:
            raise InvalidArgument(
                f"prepare returned an array of shape {array.shape} for {rows} messages; return "
                "rows for all, or raise for a malformed message",
                "Online",
            )
        if size == rows:
            return leaf
        return np.concatenate([array, np.repeat(array[-1:], size - rows, axis=0)])

    return mapped(padded, batch)


def _weights(rows: int, size: int) -> Any:
    weights = np.zeros(size, np.float32)
    weights[:rows] = size / rows
    return weights
