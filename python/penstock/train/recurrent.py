"""Recurrent models that keep their state from batch to batch, run over a feed of sequences."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .rows import Inputs, array_of, joined, split
from .sequences import Stateful
from .steps import is_module

_LANES = 32  # the default

Reset = npt.NDArray[np.bool_]


def finished_sequences(
    model: Any, feed: Iterable[Any], inputs: Inputs, lanes: int | None, window: int | None
) -> Iterator[tuple[int, Any, Any]]:
    """Run a recurrent model over one pass of a feed of sequences.

    Yields (number, outputs, rest) for each sequence soon after its end: its place in the feed, a
    nest of arrays with a row for each step, and the parts of its element that are not the model's
    input, or None. Arguments and errors: as for `predict` with `stateful`.
    """
    run = _runner_of(model)
    lanes = _agreed("batch_size", lanes, run.lanes) or _LANES
    window = _agreed("window", window, run.window)
    if window is None:
        raise InvalidArgument("stateful=True needs window=, the steps of a batch", "predict")
    rests: dict[int, Any] = {}
    parts: dict[int, list[Any]] = {}

    def sequences() -> Iterator[Any]:
        for number, element in enumerate(feed):
            x, rest = split(element, inputs)
            rests[number] = mapped(lambda leaf: np.array(leaf) if np.ndim(leaf) else leaf, rest)
            yield x

    def finished(running: set[int]) -> Iterator[tuple[int, Any, Any]]:
        for number in sorted(parts.keys() - running):
            yield number, joined(parts.pop(number), "the model's outputs"), rests.pop(number)

    with run:
        for batch in Stateful(sequences(), batch_size=lanes, window=window):
            yield from finished(set(batch.sequence.tolist()))
            outputs = mapped(array_of, run(batch.x, batch.reset))
            _check(outputs, lanes, window)
            for lane in np.flatnonzero(batch.sequence >= 0):
                part = _of_lane(outputs, int(lane), int(batch.steps[lane]))
                parts.setdefault(int(batch.sequence[lane]), []).append(part)
        yield from finished(set())


class _Runner:
    """Calls a model that handles `reset` itself.

    A runner is a context manager for one pass. Its ``run(x, reset)`` takes a nest of arrays of
    shape (lanes, window, ...), first resets the state of the lanes in `reset`, and returns a nest
    of arrays or tensors of shape (lanes, window, ...).
    """

    # The sizes that the model was built with; None: any.
    lanes: int | None = None
    window: int | None = None

    def __init__(self, model: Any) -> None:
        self.model = model

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, x: Any, reset: Reset) -> Any:
        return self.model(x, reset)


class _KerasRunner(_Runner):
    """Calls a Keras model with stateful layers, whose own state is the same afterwards."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._keras: Any = sys.modules["keras"]
        self._evaluating = {"training": False} if model._call_has_training_arg else {}
        self._jitted: Any = None
        layers = [layer for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
        self._layers = [layer for layer in layers if hasattr(layer, "states")]
        if not self._layers:
            raise InvalidArgument(
                f"the model {model.name!r} has no layer that keeps its state: make its recurrent "
                "layers with stateful=True, and its inputs with a fixed batch size",
                "predict",
            )
        if any(type(layer).__name__ == "Bidirectional" for layer in layers):
            raise InvalidArgument(
                f"the model {model.name!r} has a Bidirectional layer, which needs whole sequences: "
                "its state cannot be carried from window to window",
                "predict",
            )
        if states := self._states():
            self.lanes = int(states[0].shape[0])
        if given := leaves_of(getattr(model, "inputs", None) or []):
            self.window = given[0].shape[1]

    def _states(self) -> list[Any]:
        """Return the variables of the state; none before the model is built."""
        return [state for layer in self._layers for state in leaves_of(layer.states or [])]

    def __enter__(self) -> None:
        self._before = [(state, np.array(self._array(state))) for state in self._states()]

    def __exit__(self, *_: object) -> None:
        if self._before:
            for state, value in self._before:
                state.assign(value)
        else:
            for layer in self._layers:
                layer.reset_state()

    def __call__(self, x: Any, reset: Reset) -> Any:
        if reset.any():
            for state in self._states():
                rows = reset.reshape((-1,) + (1,) * (len(state.shape) - 1))
                state.assign(np.where(rows, 0, self._array(state)))
        if not self._states():  # the first call builds the model
            return self.model(x, **self._evaluating)
        if self._keras.backend.backend() == "jax":
            return self._call_jax(x)
        return self.model.predict_on_batch(x)

    def _call_jax(self, x: Any) -> Any:
        # With JAX, predict_on_batch() of Keras 3 drops the new state, which is no variable of the
        # model.
        states = self._states()
        variables = [*self.model.variables, *states]
        if self._jitted is None:

            def run(values: list[Any], x: Any) -> tuple[Any, list[Any]]:
                mapping = list(zip(variables, values, strict=True))
                with self._keras.StatelessScope(state_mapping=mapping) as scope:
                    outputs = self.model(x, **self._evaluating)
                return outputs, [scope.get_current_value(state) for state in states]

            self._jitted = sys.modules["jax"].jit(run)
        outputs, after = self._jitted([variable.value for variable in variables], x)
        for state, value in zip(states, after, strict=True):
            state.assign(value)
        return outputs

    def _array(self, state: Any) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self._keras.ops.convert_to_numpy(state)
        return array


class _TorchRunner(_Runner):
    """Calls a torch module ``model(x, state) -> (outputs, state)``, in evaluation mode."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        torch = sys.modules["torch"]
        self._torch: Any = torch
        recurrent = isinstance(model, torch.nn.RNNBase)
        if recurrent and model.bidirectional:
            raise InvalidArgument(
                f"this {type(model).__name__} is bidirectional, which needs whole sequences: its "
                "state cannot be carried from window to window",
                "predict",
            )
        self._steps_first = recurrent and not model.batch_first
        weight = next(iter(model.parameters()), None)
        self._device = "cpu" if weight is None else weight.device
        self._dtype = torch.get_default_dtype() if weight is None else weight.dtype

    def __enter__(self) -> None:
        self._training = self.model.training
        self._state: Any = None
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self._training)

    def __call__(self, x: Any, reset: Reset) -> Any:
        with self._torch.inference_mode():
            if self._state is not None and reset.any():
                rows = self._torch.from_numpy(reset).to(self._device)
                self._state = mapped(lambda leaf: self._cleared(leaf, rows), self._state)
            made = self.model(mapped(self._tensor, x), self._state)
            if not isinstance(made, tuple) or len(made) != 2:
                raise InvalidArgument(
                    f"{type(self.model).__name__} returned a {type(made).__name__}; a recurrent "
                    "module takes (x, state) and returns (outputs, state), as torch.nn.LSTM does",
                    "predict",
                )
            outputs, self._state = made
            return mapped(self._transposed, outputs)

    def _tensor(self, leaf: Any) -> Any:
        tensor = self._torch.from_numpy(leaf).to(self._device)
        return self._transposed(tensor.to(self._dtype) if tensor.is_floating_point() else tensor)

    def _transposed(self, tensor: Any) -> Any:
        return tensor.transpose(0, 1) if self._steps_first else tensor

    def _cleared(self, leaf: Any, rows: Any) -> Any:
        # As torch has it: (layers, lanes, units) for recurrent modules, (lanes, units) for cells.
        lanes = 1 if leaf.ndim == 3 else 0
        if leaf.ndim == 0 or leaf.shape[lanes] != len(rows):
            raise InvalidArgument(
                f"the state of {type(self.model).__name__} has shape {tuple(leaf.shape)} for "
                f"{len(rows)} lanes; give (layers, lanes, units) or (lanes, ...)",
                "predict",
            )
        shape = [1] * leaf.ndim
        shape[lanes] = -1
        return self._torch.where(rows.reshape(shape), self._torch.zeros_like(leaf), leaf)


def is_keras_model(model: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, getattr(keras, "Model", ()))


def _runner_of(model: Any) -> _Runner:
    if is_keras_model(model):
        return _KerasRunner(model)
    return _TorchRunner(model) if is_module(model) else _Runner(model)


def _agreed(name: str, given: int | None, built: int | None) -> int | None:
    """Return the argument, or the size that the model was built with."""
    if given is not None and built is not None and given != built:
        raise InvalidArgument(
            f"{name}={given}, but the model was built with {built}: omit {name}=, or build the "
            "model with that size",
            "predict",
        )
    return built if given is None else given


def _check(outputs: Any, lanes: int, window: int) -> None:
    for leaf in leaves_of(outputs):
        if np.shape(leaf)[:2] != (lanes, window):
            raise InvalidArgument(
                f"the model returned shape {np.shape(leaf)} for {lanes} lanes of {window} steps; "
                "it must return outputs for every step, as with return_sequences=True in Keras",
                "predict",
            )


def _of_lane(outputs: Any, lane: int, steps: int) -> Any:
    return mapped(lambda leaf: np.array(leaf[lane, :steps]), outputs)


class KerasMetrics:
    """The loss and metrics that a Keras model was compiled with; a step is a sample.

    ``metrics(outputs, rest)`` adds a sequence and returns its mean loss; `rest` is the targets, or
    (targets, sample weights), with a row for each step. `results` returns the metrics of all steps.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        for metric in model.metrics:
            metric.reset_state()

    def __call__(self, outputs: Any, rest: Any) -> dict[str, Any]:
        if rest is None:
            raise InvalidArgument(
                "the sequences have no targets: give (x, y), or name the model's part by inputs=",
                "evaluate",
            )
        targets, weights = (*rest, None)[:2] if isinstance(rest, tuple) else (rest, None)
        made, y, w = (mapped(self._tensor, part) for part in (outputs, targets, weights))
        loss = self._model.compute_loss(x=None, y=y, y_pred=made, sample_weight=w, training=False)
        self._model.compute_metrics(None, y, made, w)
        return {"loss": array_of(loss)}

    def results(self) -> dict[str, float]:
        found = self._model.get_metrics_result()
        return {name: float(value) for name, value in found.items() if name != "loss"}

    @staticmethod
    def _tensor(leaf: Any) -> Any:
        return None if leaf is None else sys.modules["keras"].ops.convert_to_tensor(leaf)


def metrics_of(model: Any) -> KerasMetrics:
    """Return the metrics of a compiled Keras model, for an evaluation without `metrics`."""
    if not is_keras_model(model):
        text = "stateful=True needs metrics=, a function (outputs, rest) -> dict"
    elif not model.compiled:
        text = f"the model {model.name!r} is not compiled: compile it, or give metrics="
    else:
        return KerasMetrics(model)
    raise InvalidArgument(text, "evaluate")
