"""The optimizers of penstock.train against NumPy's and torch's, over a thousand steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

import optimizer_formulas as formulas
import penstock
from penstock import train

STEPS = 1000
SHAPES = {"w": (13, 7), "b": (7,)}
DECAY = 0.01


def drawn(scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return {n: (scale * rng.normal(size=s)).astype(np.float32) for n, s in SHAPES.items()}


def gradient(weights, targets, seed):
    """The gradient of a quadratic with noise: it depends on the weights, so errors could grow."""
    noise = drawn(0.3, seed)
    return {n: (weights[n] - targets[n] + noise[n]).astype(np.float32) for n in weights}


# penstock's optimizer, the NumPy formula, torch's optimizer with its arguments.
CASES = {
    "sgd": (train.SGD(0.05, weight_decay=DECAY), formulas.SGD, "SGD", {"lr": 0.05}),
    "momentum": (
        train.Momentum(0.01, weight_decay=DECAY),
        formulas.Momentum,
        "SGD",
        {"lr": 0.01, "momentum": 0.9},
    ),
    "nesterov": (
        train.Nesterov(0.01, weight_decay=DECAY),
        formulas.Nesterov,
        "SGD",
        {"lr": 0.01, "momentum": 0.9, "nesterov": True},
    ),
    "adagrad": (train.Adagrad(0.05, weight_decay=DECAY), formulas.Adagrad, "Adagrad", {"lr": 0.05}),
    "rmsprop": (
        train.RMSProp(0.001, weight_decay=DECAY),
        formulas.RMSProp,
        "RMSprop",
        {"lr": 0.001},
    ),
    "centered": (
        train.RMSProp(0.001, centered=True, weight_decay=DECAY),
        formulas.CenteredRMSProp,
        "RMSprop",
        {"lr": 0.001, "centered": True},
    ),
    "adam": (train.Adam(0.001, weight_decay=DECAY), formulas.Adam, "Adam", {"lr": 0.001}),
    "adamw": (train.AdamW(0.001, weight_decay=DECAY), formulas.AdamW, "AdamW", {"lr": 0.001}),
}

# Rounding of float32 over all steps; torch's own runs in float32 and float64 differ as much. The
# centered form divides by a difference of almost equal numbers; AdamW's factor of 1 - 1e-5 is
# rounded to float32.
ROUNDING = {"centered": 1e-4, "adamw": 5e-5}
TORCH = {"centered": 5e-6}


def ours(optimizer, steps=STEPS):
    """The gradients of a run, and its weights at the end."""
    parameters = train.Parameters(drawn())
    updater = train.Updater(parameters, optimizer)
    gradients, targets = parameters.gradients(), drawn(seed=1)
    seen = []
    for step in range(steps):
        seen.append(gradient(parameters, targets, 100 + step))
        gradients.update(seen[-1])
        assert updater.apply(gradients)
    assert updater.step == parameters.version == steps
    return seen, {name: array.copy() for name, array in parameters.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_equals_plain_numpy(name, dtype):
    optimizer, formula, _, arguments = CASES[name]
    gradients, weights = ours(optimizer)
    for block in SHAPES:
        run = formula(drawn()[block], dtype, arguments["lr"], DECAY)
        for g in gradients:
            run.update(g[block])
        assert np.abs(run.w - weights[block]).max() < ROUNDING.get(name, 5e-6)


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    torch = pytest.importorskip("torch")
    optimizer, _, theirs, arguments = CASES[name]
    gradients, weights = ours(optimizer)
    tensors = {n: torch.tensor(w, requires_grad=True) for n, w in drawn().items()}
    run = getattr(torch.optim, theirs)(list(tensors.values()), weight_decay=DECAY, **arguments)
    for g in gradients:
        for block, tensor in tensors.items():
            tensor.grad = torch.from_numpy(g[block])
        run.step()
    for block, tensor in tensors.items():
        assert np.abs(tensor.detach().numpy() - weights[block]).max() < TORCH.get(name, 1e-6)


@pytest.mark.parametrize("clip", ["clip_norm", "clip_value"])
def test_clips_as_torch_does(clip):
    torch = pytest.importorskip("torch")
    gradients, weights = ours(train.SGD(0.05, **{clip: 1.5}))
    tensors = {n: torch.tensor(w, requires_grad=True) for n, w in drawn().items()}
    run = torch.optim.SGD(list(tensors.values()), 0.05)
    clipped = {"clip_norm": "clip_grad_norm_", "clip_value": "clip_grad_value_"}[clip]
    for g in gradients:
        for block, tensor in tensors.items():
            tensor.grad = torch.from_numpy(g[block])
        getattr(torch.nn.utils, clipped)(tensors.values(), 1.5)
        run.step()
    for block, tensor in tensors.items():
        assert np.abs(tensor.detach().numpy() - weights[block]).max() < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_runs_repeat_bit_for_bit(name):
    first, second = (ours(CASES[name][0], 50)[1] for _ in range(2))
    assert all(first[block].tobytes() == second[block].tobytes() for block in SHAPES)


def test_schedules_are_torchs():
    torch = pytest.importorskip("torch")
    lr_scheduler = torch.optim.lr_scheduler
    cases = [
        (train.Schedule.steps(0.5, [3, 7], 0.1), lr_scheduler.MultiStepLR, ([3, 7], 0.1)),
        (train.Schedule.exponential(0.5, 0.9), lr_scheduler.ExponentialLR, (0.9,)),
        (train.Schedule.cosine(0.5, 12, 0.1), lr_scheduler.CosineAnnealingLR, (12, 0.1)),
    ]
    for schedule, theirs, arguments in cases:
        run = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5)
        scheduler = theirs(run, *arguments)
        for step in range(13):
            assert math.isclose(schedule.at(step), run.param_groups[0]["lr"], rel_tol=1e-9)
            run.step()
            scheduler.step()


def test_a_schedule_drives_the_updates():
    parameters = train.Parameters({"w": (1,)})
    schedule = train.Schedule.steps(1.0, [2], 0.5).after_warmup(1)
    updater = train.Updater(parameters, train.SGD(schedule))
    seen = []
    for _ in range(5):
        seen.append(updater.lr)
        updater.apply({"w": [-1.0]})
    assert seen == [0.5, 1, 1, 0.5, 0.5]
    assert parameters["w"][0] == sum(seen)


def test_optimizers_are_values():
    assert train.Adam(1e-3) == train.Adam()
    assert train.Adam(lr=1e-2) != train.Adam()
    assert "beta1=0.9" in repr(train.Adam())
    assert train.AdamW().weight_decay == 0.01
    with pytest.raises(AttributeError):
        train.Adam().lr = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: train.SGD(-1), "lr is -1"),
        (lambda: train.SGD(math.nan), "lr is nan"),
        (lambda: train.SGD("fast"), "no number.*fast"),
        (lambda: train.Momentum(momentum=1), "momentum is 1"),
        (lambda: train.Adam(beta2=1.1), "beta2 is 1.1"),
        (lambda: train.Adam(eps=0), "eps is 0"),
        (lambda: train.Adam(weight_decay=-1), "weight_decay is -1"),
        (lambda: train.Adam(clip_norm=0), "clip_norm is 0"),
        (lambda: train.Adam(clip_norm=1, clip_value=1), "not both"),
        (lambda: train.RMSProp(alpha=2), "alpha is 2"),
        (lambda: train.Adagrad(initial=-1), "initial is -1"),
        (train.Optimizer, "choose a formula"),
        (lambda: train.Schedule(-1), "lr is -1"),
        (lambda: train.Schedule.steps(1, [5, 3]), "do not ascend"),
        (lambda: train.Schedule.cosine(1, 0), "steps is 0"),
    ],
)
def test_hyper_parameters_are_checked_when_given(make, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        make()
