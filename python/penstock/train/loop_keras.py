"""A Keras model in the loop: one scan on JAX, one graph on TensorFlow, a tight loop on torch.

Whatever the backend, a step is the model's own ``train_step``, with all that it was compiled with.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument
from .loop_runs import Run, Said, Scan, Steps, rows_of_columns, said_of
from .super_batches import SuperBatch, like


def runner_for_model(model: Any) -> Run:
    """Return what runs steps of a compiled model, on the backend of this process."""
    kinds = {"jax": OnJax, "tensorflow": OnTensorFlow, "torch": OnTorch}
    backend = keras.backend.backend()
    if backend not in kinds:
        raise InvalidArgument(f"Keras' backend {backend} does not train", "Loop")
    if not model.compiled:
        raise InvalidArgument("the model has no optimizer yet; call model.compile()", "Loop")
    if keras.distribution.distribution() is not None:
        text = "a model under keras.distribution trains by fit only; its batches are laid out there"
        raise InvalidArgument(text, "Loop")
    return kinds[backend](model)


class OnModel(Run):
    """What all backends have in common: what ``fit`` does around steps."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._of: Any = None  # the train_function: compile() drops it
        self._ready = self._pass_begins = False

    def begin(self) -> None:
        self.model.stop_training = False
        self._ready = False

    def begin_pass(self) -> None:
        self._pass_begins = True

    def __call__(self, batches: SuperBatch) -> Said:
        try:
            if not self._ready:
                self._prepare(batches)
            if self._pass_begins:
                self.show()
                self.model.reset_metrics()
                self._pass_begins = False
        except Exception as error:
            return said_of([], error)
        return self._run(batches)

    def asks_to_stop(self) -> bool:
        return bool(self.model.stop_training)

    def end(self, whole: bool) -> None:
        self.show()
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
        """Make what `_run` calls, for what the model was compiled with."""
        raise NotImplementedError

    def _run(self, batches: SuperBatch) -> Said:
        raise NotImplementedError


class OnJax(OnModel):
    """The model's state is handed from step to step, and lies in the model between runs only.

    It is donated, as by ``fit``: while steps run, the model's variables hold nothing.
    """

    _inner: Scan | Steps
    _variables: tuple[list[Any], ...]
    _away = False  # the state is not in the model

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

    def _run(self, batches: SuperBatch) -> Said:
        if not self._away:
            self._inner.state = tuple([v.value for v in part] for part in self._variables)
            self._away = True
        return self._inner(batches)

    def show(self) -> None:
        if self._away:
            for part, values in zip(self._variables, self._inner.state, strict=True):
                for variable, value in zip(part, values, strict=True):
                    variable.assign(value)
            self._inner.state = ()
            self._away = False


class OnTorch(OnModel):
    """One step after the other, on tensors that a super-batch was made once."""

    def begin_pass(self) -> None:
        super().begin_pass()
        self.model.train()  # predict() in a callback leaves it otherwise

    def _compile(self) -> None:
        function = self.model.train_function

        def step(batch: Any) -> Any:
            # A result may be a metric's own memory, which the next step changes.
            return mapped(_copied, function([batch]))

        self._inner = Steps(step, None)

    def _run(self, batches: SuperBatch) -> Said:
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
    """One graph, with a loop in it, for each shape of a batch; any number of steps."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if model.distribute_strategy.num_replicas_in_sync != 1:
            text = "a model under a tf.distribute strategy trains by fit only"
            raise InvalidArgument(text, "Loop")
        self._graphs: dict[Any, Any] = {}

    def _compile(self) -> None:
        self._graphs.clear()

    def _run(self, batches: SuperBatch) -> Said:
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
            said = mapped(np.asarray, self._graphs[key](*columns))
        except Exception as error:
            return said_of([], error)
        count = batches.steps
        last = partial(rows_of_columns, mapped(lambda column: column[-1:], said), 1)
        return Said(
            count, partial(rows_of_columns, said, count), lambda: last()[0], None, lambda: None
        )

    def _graph(self, nest: Any, columns: list[Any]) -> Any:
        import tensorflow as tf

        rows = [tf.TensorSpec(column.shape[1:], column.dtype) for column in columns]
        outside = tf.autograph.experimental.do_not_convert
        step = tf.function(outside(self.model.train_step), jit_compile=self.model.jit_compile)
        said = step.get_concrete_function(like(nest, rows)).structured_outputs

        def steps(*columns: Any) -> Any:
            count = tf.shape(columns[0])[0]
            notes = [
                tf.TensorArray(each.dtype, size=count, element_shape=each.shape)
                for each in leaves_of(said)
            ]

            def body(i: Any, notes: list[Any]) -> Any:
                metrics = step(like(nest, [column[i] for column in columns]))
                found = zip(notes, leaves_of(metrics), strict=True)
                return i + 1, [note.write(i, value) for note, value in found]

            _, notes = tf.while_loop(
                lambda i, _: i < count, body, (tf.constant(0), notes), parallel_iterations=1
            )
            return like(said, [note.stack() for note in notes])

        many = [tf.TensorSpec([None, *column.shape[1:]], column.dtype) for column in columns]
        return tf.function(outside(steps), input_signature=many)
