"""Keras models in Loop: one scan on JAX, one graph on TensorFlow, a plain loop on torch.

A step is the model's own ``train_step``, with its compiled optimizer, loss and metrics.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .loop_runs import Runner, RunResult, Scan, Steps, result_of, rows_of_columns
from .super_batches import SuperBatch, like


def runner_for_model(model: Any) -> Runner:
    """Return the runner of a compiled model for this process's backend."""
    kinds = {"jax": OnJax, "tensorflow": OnTensorFlow, "torch": OnTorch}
    backend = keras.backend.backend()
    if backend not in kinds:
        raise InvalidArgument(f"Keras' backend {backend} does not train", "Loop")
    if not model.compiled:
        raise InvalidArgument("the model has no optimizer yet; call model.compile()", "Loop")
    if keras.distribution.distribution() is not None:
        text = "a model under keras.distribution can only be trained by fit"
        raise InvalidArgument(text, "Loop")
    return kinds[backend](model)


class OnModel(Runner):
    """Base of the backends: the work of ``fit`` around steps."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._of: Any = None  # the model's train_function, which compile() replaces
        self._ready = self._pass_begins = False

    def begin(self) -> None:
        self.model.stop_training = False
        self._ready = False

    def begin_pass(self) -> None:
        self._pass_begins = True

    def __call__(self, batches: SuperBatch) -> RunResult:
        try:
            if not self._ready:
                self._prepare(batches)
            if self._pass_begins:
                self.sync_model()
                self.model.reset_metrics()
                self._pass_begins = False
        except Exception as error:
            return result_of([], error)
        return self._run_steps(batches)

    def stop_requested(self) -> bool:
        return bool(self.model.stop_training)

    def end(self, whole: bool) -> None:
        self.sync_model()
        if whole and self._ready and isinstance(self.model.optimizer, keras.optimizers.Optimizer):
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    def _prepare(self, batches: SuperBatch) -> None:
        model = self.model
        model._symbolic_build(data_batch=next(iter(batches.each())))
        model.make_train_function()
        if self._of is not model.train_function:
            self._of = model.train_function
            self._compile()
        self._ready = True

    def _compile(self) -> None:
        """Prepare `_run_steps` for the compiled model."""
        raise NotImplementedError

    def _run_steps(self, batches: SuperBatch) -> RunResult:
        raise NotImplementedError


class OnJax(OnModel):
    """Passes the model's state from step to step, and puts it back into the model between runs.

    The state is donated, as in ``fit``: the model's variables are invalid while steps run.
    """

    _inner: Scan | Steps
    _variables: tuple[list[Any], ...]
    _away = False  # the state is outside the model

    def _prepare(self, batches: SuperBatch) -> None:
        super()._prepare(batches)
        model = self.model
        self._variables = (
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            list(model.optimizer.variables),
            list(model.metrics_variables),
        )

    def _compile(self) -> None:
        train_step = self.model.train_step

        def step(state: Any, batch: Any) -> Any:
            logs, state = train_step(state, batch)
            return state, logs

        eagerly = self.model.run_eagerly or not self.model.jit_compile
        self._inner = Steps(step, ()) if eagerly else Scan(step, (), donate=True)

    def _run_steps(self, batches: SuperBatch) -> RunResult:
        if not self._away:
            self._inner.state = tuple([v.value for v in part] for part in self._variables)
            self._away = True
        return self._inner(batches)

    def sync_model(self) -> None:
        if self._away:
            for part, values in zip(self._variables, self._inner.state, strict=True):
                for variable, value in zip(part, values, strict=True):
                    variable.assign(value)
            self._inner.state = ()
            self._away = False


class OnTorch(OnModel):
    """Runs one step after the other, on a super-batch that was converted to tensors once."""

    def begin_pass(self) -> None:
        super().begin_pass()
        self.model.train()  # a callback's predict() ends the training mode

    def _compile(self) -> None:
        function = self.model.train_function

        def step(batch: Any) -> Any:
            # A result may share a metric's memory, which the next step changes.
            return mapped(_copied, function([batch]))

        self._inner = Steps(step, None)

    def _run_steps(self, batches: SuperBatch) -> RunResult:
        tensor = keras.ops.convert_to_tensor
        whole = None if batches.whole is None else mapped(tensor, batches.whole)
        parts = [mapped(tensor, part) for part in batches.parts]
        return self._inner(batches._replace(whole=whole, parts=parts))

    def end(self, whole: bool) -> None:
        self.model.eval()
        super().end(whole)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if hasattr(leaf, "detach") else leaf


class OnTensorFlow(OnModel):
    """Runs any number of steps in one graph with a loop, one graph for each shape of batch."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if model.distribute_strategy.num_replicas_in_sync != 1:
            text = "a model under a tf.distribute strategy can only be trained by fit"
            raise InvalidArgument(text, "Loop")
        self._graphs: dict[Any, Any] = {}

    def _compile(self) -> None:
        self._graphs.clear()

    def _run_steps(self, batches: SuperBatch) -> RunResult:
        if self.model.run_eagerly:
            return Steps(self.model.train_step, None)(batches)
        import tensorflow as tf

        try:
            nest = batches.stacked()
            columns = [tf.convert_to_tensor(leaf) for leaf in leaves_of(nest)]
            names = mapped(lambda _: None, nest)
            key = repr(names), tuple((column.dtype, tuple(column.shape[1:])) for column in columns)
            if key not in self._graphs:
                self._graphs[key] = self._graph(names, columns)
            metrics = mapped(np.asarray, self._graphs[key](*columns))
        except Exception as error:
            return result_of([], error)
        count = batches.steps
        last = partial(rows_of_columns, mapped(lambda column: column[-1:], metrics), 1)
        return RunResult(
            count, partial(rows_of_columns, metrics, count), lambda: last()[0], None, lambda: None
        )

    def _graph(self, nest: Any, columns: list[Any]) -> Any:
        import tensorflow as tf

        rows = [tf.TensorSpec(column.shape[1:], column.dtype) for column in columns]
        outside = tf.autograph.experimental.do_not_convert
        step = tf.function(outside(self.model.train_step), jit_compile=self.model.jit_compile)
        metrics = step.get_concrete_function(like(nest, rows)).structured_outputs

        def steps(*columns: Any) -> Any:
            count = tf.shape(columns[0])[0]
            notes = [
                tf.TensorArray(each.dtype, size=count, element_shape=each.shape)
                for each in leaves_of(metrics)
            ]

            def body(i: Any, notes: list[Any]) -> Any:
                metrics = step(like(nest, [column[i] for column in columns]))
                found = zip(notes, leaves_of(metrics), strict=True)
                return i + 1, [note.write(i, value) for note, value in found]

            _, notes = tf.while_loop(
                lambda i, _: i < count, body, (tf.constant(0), notes), parallel_iterations=1
            )
            return like(metrics, [note.stack() for note in notes])

        many = [tf.TensorSpec([None, *column.shape[1:]], column.dtype) for column in columns]
        return tf.function(outside(steps), input_signature=many)
