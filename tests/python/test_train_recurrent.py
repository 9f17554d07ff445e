"""predict and evaluate with torch's recurrent modules; Keras models: keras_recurrent_child."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import train

torch = pytest.importorskip("torch")

WIDTH = 2


def sequences(count=9, dtype=np.float32):
    rng = np.random.default_rng(6)
    return [rng.normal(size=(rng.integers(1, 13), WIDTH)).astype(dtype) for _ in range(count)]


class Tagger(torch.nn.Module):
    """A module of a user's own, with a state of two parts."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.LSTM(WIDTH, 5, num_layers=2, batch_first=True, dropout=0.5)
        self.cell = torch.nn.GRUCell(5, 3)

    def forward(self, x, state=None):
        outer, inner = (None, None) if state is None else state
        made, outer = self.first(x, outer)
        steps = []
        for step in range(made.shape[1]):
            inner = self.cell(made[:, step], inner)
            steps.append(inner)
        return {"tags": torch.stack(steps, dim=1)}, (outer, inner)


def modules():
    torch.manual_seed(2)
    yield torch.nn.GRU(WIDTH, 4, batch_first=True), lambda made: made
    yield torch.nn.LSTM(WIDTH, 4, num_layers=2), lambda made: made
    yield torch.nn.RNN(WIDTH, 3, batch_first=True).double(), lambda made: made
    yield Tagger(), lambda made: made["tags"]


def whole(module, x):
    """The module's outputs for one whole sequence."""
    steps_first = isinstance(module, torch.nn.RNNBase) and not module.batch_first
    dtype = next(module.parameters()).dtype
    x = (
        torch.from_numpy(x).to(dtype)[:, None]
        if steps_first
        else torch.from_numpy(x).to(dtype)[None]
    )
    training = module.training
    with torch.no_grad():
        outputs, _ = module.eval()(x)
    module.train(training)
    outputs = outputs["tags"] if isinstance(outputs, dict) else outputs
    return (outputs[:, 0] if steps_first else outputs[0]).numpy()


@pytest.mark.parametrize(("lanes", "window"), [(1, 1), (3, 4), (20, 5), (4, 50)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sequences_are_predicted_as_if_whole(dtype, lanes, window):
    given = [{"x": x, "id": number} for number, x in enumerate(sequences(dtype=dtype))]
    for module, part in modules():
        outputs, extras = train.predict(
            module, given, inputs="x", stateful=True, batch_size=lanes, window=window
        )
        assert module.training
        assert [extra["id"] for extra in extras] == list(range(len(given)))
        for made, element in zip(outputs, given, strict=True):
            np.testing.assert_allclose(part(made), whole(module, element["x"]), atol=1e-5)


def test_evaluate_averages_over_all_steps_of_all_sequences():
    for module, part in modules():
        given = [(x, x.sum(axis=1)) for x in sequences()]

        def metrics(outputs, rest, part=part):
            return {"error": np.abs(part(outputs)[:, 0] - rest[0]), "last": part(outputs)[-1, 0]}

        found = train.evaluate(
            module, given, stateful=True, batch_size=2, window=3, metrics=metrics
        )
        outputs = [whole(module, x)[:, 0] for x, _ in given]
        errors = [np.abs(made - y) for made, (_, y) in zip(outputs, given, strict=True)]
        steps = [len(x) for x, _ in given]
        assert found["rows"] == sum(steps)
        assert found["error"] == pytest.approx(np.concatenate(errors).mean(), rel=1e-5)
        last = np.average([made[-1] for made in outputs], weights=steps)
        assert found["last"] == pytest.approx(last, rel=1e-5)


def test_a_function_that_resets_its_own_state_is_evaluated_too():
    state = np.zeros(2)

    def sums(x, reset):
        state[reset] = 0
        made = state[:, None] + np.cumsum(x, axis=1)
        state[:] = made[:, -1]
        return made

    given = [np.arange(n, dtype=float) for n in (1, 5, 2, 7)]
    found = train.evaluate(
        sums,
        given,
        stateful=True,
        batch_size=2,
        window=2,
        metrics=lambda outputs, rest: {"sum": outputs},
    )
    assert found["sum"] == pytest.approx(np.concatenate([np.cumsum(x) for x in given]).mean())


class NoState(torch.nn.Module):
    def forward(self, x, state):
        return x


class Odd(torch.nn.Module):
    def forward(self, x, state):
        return x, torch.zeros(x.shape[0] + 1, 3)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (torch.nn.GRU(WIDTH, 3, bidirectional=True), "GRU is bidirectional"),
        (NoState(), r"NoState returned a Tensor; .*takes \(x, state\)"),
        (Odd(), r"the state of Odd has shape \(3, 3\) for 2 lanes"),
    ],
)
def test_modules_that_cannot_carry_a_state_are_refused(module, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        train.predict(module, sequences(), stateful=True, batch_size=2, window=2)


def test_what_is_missing_is_said():
    module = torch.nn.GRU(WIDTH, 3, batch_first=True)
    with pytest.raises(penstock.InvalidArgument, match="needs metrics="):
        train.evaluate(module, sequences(), stateful=True, window=2)
    with pytest.raises(penstock.InvalidArgument, match="gave no sequence"):
        train.evaluate(module, [], stateful=True, window=2, metrics=lambda outputs, rest: {})
    with pytest.raises(penstock.InvalidArgument, match="are for stateful=True"):
        train.evaluate(lambda batch: {}, [np.zeros((2, 2))], window=2)
