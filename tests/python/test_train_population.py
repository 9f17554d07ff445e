"""train.Population against training each model alone by torch."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock import errors, train  # noqa: E402
from penstock.train import population_torch  # noqa: E402
from penstock.train.population_strategies import Stacked  # noqa: E402

MEMBERS, ROWS, STEPS = 5, 8, 12
STRATEGIES = ("stacked", "concurrent")


@pytest.fixture(autouse=True, params=["host", "device"])
def rows(request, monkeypatch):
    """Each test with rows of the engine, and with rows of tensors as on a device."""
    if request.param == "device":
        monkeypatch.setattr(population_torch, "_on_host", lambda device: False)
    return request.param


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 3)
        self.out = torch.nn.Linear(3 * 6 * 6, 4)

    def forward(self, images):
        return self.out(torch.relu(self.conv(images)).flatten(1))


class Normalized(Small):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)

    def forward(self, images):
        return self.out(torch.relu(self.norm(self.conv(images))).flatten(1))


def batches(count=STEPS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((ROWS, 1, 8, 8)).astype(np.float32), rng.integers(0, 4, ROWS))
        for _ in range(count)
    ]


def alone(seed, make_optimizer, data, steps, model=Small):
    """The same by torch alone: the module, and the loss of each step."""
    torch.manual_seed(seed)
    module = model()
    optimizer = make_optimizer(module.parameters())
    losses = []
    for step in range(steps):
        inputs, targets = map(torch.from_numpy, data[step % len(data)])
        loss = torch.nn.functional.cross_entropy(module(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return module, losses


def weights(module):
    return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}


def assert_alike(module, other):
    for name, array in weights(other).items():
        np.testing.assert_allclose(weights(module)[name], array, rtol=2e-4, atol=2e-6)


LRS = [float(lr) for lr in np.geomspace(1e-3, 1e-1, MEMBERS)]
DECAYS = [0.0, 0.1, 0.01, 0.0, 0.2]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "of_torch"),
    [
        ("sgd", lambda p, lr, d: torch.optim.SGD(p, lr, weight_decay=d)),
        ("momentum", lambda p, lr, d: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=d)),
        ("adam", lambda p, lr, d: torch.optim.Adam(p, lr, weight_decay=d)),
    ],
)
def test_members_are_as_if_trained_alone(name, of_torch, strategy):
    data = batches()
    with train.Population(
        Small,
        members=MEMBERS,
        hyper={"lr": LRS, "weight_decay": DECAYS},
        optimizer=name,
        seed=3,
        strategy=strategy,
    ) as population:
        results = list(population.train(data, steps=STEPS).as_completed())
        assert [r.member for r in results] == list(range(MEMBERS))
        for n, result in enumerate(results):
            module, losses = alone(
                3 + n, lambda p, n=n: of_torch(p, LRS[n], DECAYS[n]), data, STEPS
            )
            assert (result.error, result.steps) == (None, STEPS)
            np.testing.assert_allclose(result.losses, losses, rtol=1e-4)
            assert_alike(population.module(n), module)
            assert population.step(n) == STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_member_has_its_own_data(strategy):
    feeds = {}

    def own(member, seed):
        feeds[member] = batches(3, seed)  # ends, and is begun again
        return feeds[member]

    seeds = [7, 7, 9]
    with train.Population(
        Small, members=3, hyper={"lr": 0.05, "seed": seeds}, optimizer="sgd", strategy=strategy
    ) as population:
        for result in population.train(own, steps=[4, 5, 6]).as_completed():
            n = result.member
            module, losses = alone(
                seeds[n], lambda p: torch.optim.SGD(p, 0.05), feeds[n], result.steps
            )
            assert result.steps == 4 + n
            np.testing.assert_allclose(result.losses, losses, rtol=1e-4)
            assert_alike(population.module(n), module)


def test_a_loader_is_the_data():
    x = np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32)
    y = np.arange(64) % 4

    def own(member, seed):
        return penstock.Loader((x, y), batch_size=ROWS, shuffle=True, seed=seed, workers=0)

    with train.Population(
        Small, members=3, hyper={"lr": 0.02}, strategy="concurrent"
    ) as population:
        first = list(population.train(own, steps=16).as_completed())
    assert all(r.losses[-4:].mean() < r.losses[:4].mean() for r in first)
    assert not np.array_equal(first[0].losses, first[1].losses)


def test_both_strategies_are_measured_and_one_goes_on():
    data = batches()
    with train.Population(Small, members=4, optimizer="sgd") as population:
        assert population.strategy is None
        results = list(population.train(data, steps=STEPS).as_completed())
        assert population.strategy in STRATEGIES
    _, losses = alone(2, lambda p: torch.optim.SGD(p, 0.01), data, STEPS)
    np.testing.assert_allclose(results[2].losses, losses, rtol=1e-4)


def test_members_with_fewer_steps_are_yielded_first():
    with train.Population(Small, members=4, strategy="stacked") as population:
        order = []
        for result in population.train(batches(), steps=[9, 2, 5, 2]).as_completed():
            order.append(result.member)
            assert population.step(result.member) == result.steps
    assert order == [1, 3, 2, 0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_member_that_diverges_stops_alone(strategy):
    data = batches()
    with train.Population(
        Small, members=3, hyper={"lr": [0.01, 1e30, 0.02]}, optimizer="sgd", strategy=strategy
    ) as population:
        results = {r.member: r for r in population.train(data, steps=STEPS).as_completed()}
    assert isinstance(results[1].error, errors.InvalidArgument)
    assert "finite" in str(results[1].error) or "the loss is" in str(results[1].error)
    assert results[1].steps < STEPS
    for n, lr in ((0, 0.01), (2, 0.02)):
        assert results[n].error is None
        _, losses = alone(n, lambda p, lr=lr: torch.optim.SGD(p, lr), data, STEPS)
        np.testing.assert_allclose(results[n].losses, losses, rtol=1e-4)


def test_an_exception_of_the_loss_is_the_members_error():
    calls = []

    def loss(outputs, targets):
        calls.append(None)
        if len(calls) == 3:
            raise ValueError("no")
        return torch.nn.functional.cross_entropy(outputs, targets)

    with train.Population(
        Small, members=2, loss=loss, strategy="concurrent", threads=1
    ) as population:
        results = list(population.train(batches(), steps=3).as_completed())
    failed = [r for r in results if r.error is not None]
    assert len(failed) == 1
    assert isinstance(failed[0].error, ValueError)
    assert (failed[0].member, failed[0].steps) == (0, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_that_fails_is_its_members_error(strategy):
    def own(member, seed):
        data = batches(4, seed)
        if member == 1:
            data[2] = (data[2][0][:, :, :4], data[2][1])  # the model refuses this size
        return data

    with train.Population(
        Small, members=3, hyper={"lr": 0.05}, optimizer="sgd", strategy=strategy
    ) as population:
        results = {r.member: r for r in population.train(own, steps=4).as_completed()}
    assert isinstance(results[1].error, RuntimeError)
    assert results[1].steps == 2
    for n in (0, 2):
        _, losses = alone(n, lambda p: torch.optim.SGD(p, 0.05), own(n, n), 4)
        assert results[n].error is None
        np.testing.assert_allclose(results[n].losses, losses, rtol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_batches_differ_in_size(strategy):
    def own(member, seed):
        data = batches(4, seed)
        data[member] = tuple(part[:3] for part in data[member])  # as at the end of an epoch
        return data

    with train.Population(
        Small, members=3, hyper={"lr": 0.05}, optimizer="sgd", strategy=strategy
    ) as population:
        for result in population.train(own, steps=4).as_completed():
            n = result.member
            module, losses = alone(n, lambda p: torch.optim.SGD(p, 0.05), own(n, n), 4)
            assert result.error is None
            np.testing.assert_allclose(result.losses, losses, rtol=1e-4)
            assert_alike(population.module(n), module)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_that_do_not_fit_wait_in_a_copy(strategy):
    data = batches(1)
    with train.Population(
        Small,
        members=5,
        resident=2,
        hyper={"lr": LRS},
        optimizer="adam",
        seed=1,
        strategy=strategy,
    ) as population:
        results = list(population.train(data, steps=4).as_completed())
        assert sorted(r.member for r in results) == list(range(5))
        for n in range(5):
            module, losses = alone(1 + n, lambda p, n=n: torch.optim.Adam(p, LRS[n]), data, 4)
            assert_alike(population.module(n), module)
            own = next(r for r in results if r.member == n)
            np.testing.assert_allclose(own.losses, losses, rtol=1e-4)


def test_a_member_is_taken_and_put_elsewhere():
    data = batches()
    with train.Population(Small, members=2, optimizer="adam", strategy="concurrent") as first:
        list(first.train(data[:5], steps=5).as_completed())
        state = first.take(1)
    assert state.step == 5
    assert state.floats.dtype == np.float32
    assert state.floats.flags.c_contiguous
    with train.Population(Small, members=3, optimizer="adam", strategy="stacked") as second:
        second.put(2, state)
        list(second.train(data[5:9], steps=4, members=[2]).as_completed())
        module, _ = alone(1, lambda p: torch.optim.Adam(p), data, 9)
        assert_alike(second.module(2), module)
        assert second.step(2) == 9
        assert second.step(0) == 0
        with pytest.raises(errors.InvalidArgument, match="floats"):
            second.put(0, train.MemberState(state.floats[1:], 5, {"seed": 0}))
        with pytest.raises(errors.InvalidArgument, match="take"):
            second.put(0, {"w": 1})


def test_a_state_that_is_refused_changes_nothing():
    with train.Population(Small, members=2, hyper={"lr": 0.1}, optimizer="sgd") as population:
        before = population.take(0)
        other = population.take(1)
        for hyper, words in (
            ({"momentum": 0.9}, "SGD has no hyper-parameter 'momentum'"),
            ({"seed": -1}, "the seed is -1"),
            ({"lr": -1.0}, "lr"),
        ):
            with pytest.raises(errors.InvalidArgument, match=words):
                population.put(0, other, hyper)
        other.step = -1
        with pytest.raises(errors.InvalidArgument, match="the step is -1"):
            population.put(0, other)
        assert population.hyper(0) == before.hyper
        np.testing.assert_array_equal(population.take(0).floats, before.floats)


def test_a_taken_state_is_a_copy():
    with train.Population(Normalized, members=2, resident=1) as population:
        for n in range(2):
            state = population.take(n)
            state.floats[:] = 7
            state.buffers["norm.running_mean"][:] = 7
            again = population.take(n)
            assert not (again.floats == 7).any()
            np.testing.assert_array_equal(again.buffers["norm.running_mean"], 0)


def test_modes_of_a_members_module_are_its_own():
    modes = []

    class Watched(Small):
        def forward(self, images):
            modes.append(self.training)
            return super().forward(images)

    with train.Population(Watched, members=1, strategy="concurrent", threads=1) as population:
        for _ in range(2):
            list(population.train(batches(), steps=1).as_completed())
            population.module(0).eval()
    assert modes == [True, True]


def test_no_thread_computes_after_ctrl_c():
    begun, ended = [], []

    def loss(outputs, targets):
        begun.append(None)
        if len(begun) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.2)
        ended.append(None)
        return torch.nn.functional.cross_entropy(outputs, targets)

    with train.Population(
        Small, members=9, loss=loss, strategy="concurrent", threads=2
    ) as population:
        with pytest.raises(KeyboardInterrupt):
            list(population.train(batches(), steps=1).as_completed())
        assert len(begun) == len(ended) < 9
        assert [population.step(n) for n in range(9)] == [0] * 9


def test_the_slower_strategys_threads_end(monkeypatch):
    from penstock.train import population_strategies

    def slow(self, rows, given, shared, step=population_strategies.Concurrent.step):
        time.sleep(0.3)
        return step(self, rows, given, shared)

    monkeypatch.setattr(population_strategies.Concurrent, "step", slow)
    with train.Population(Small, members=2) as population:
        list(population.train(batches(), steps=STEPS).as_completed())
        assert population.strategy == "stacked"
        running = {thread.name for thread in threading.enumerate()}
        assert not any(name.startswith("penstock-member") for name in running)


def test_exploit_and_explore():
    data = batches()
    with train.Population(
        Small, members=3, hyper={"lr": [0.1, 0.01, 0.001]}, optimizer="momentum", seed=4
    ) as population:
        list(population.train(data, steps=4, members=[0]).as_completed())
        population.copy(0, 2)
        np.testing.assert_array_equal(population.take(2).floats, population.take(0).floats)
        assert population.step(2) == 4
        assert population.hyper(2) == {"lr": 0.1, "seed": 6}
        assert population.perturb(2, lr=(0.5, 2.0))["lr"] in (0.05, 0.2)
        assert population.perturb(2, lr=3) == population.hyper(2)
        np.testing.assert_array_equal(population.take(2).floats, population.take(0).floats)
        assert population.step(2) == 4  # its optimizer goes on
        with pytest.raises(errors.InvalidArgument, match="'mometum'"):
            population.perturb(2, mometum=2)
        with pytest.raises(errors.InvalidArgument, match="lr"):
            population.perturb(2, lr=-1)
        for factors in ([], "2"):
            with pytest.raises(errors.InvalidArgument, match="lr"):
                population.perturb(2, lr=factors)
        assert population.hyper(2)["lr"] > 0


def test_a_run_goes_on_with_a_member_whose_result_was_yielded():
    data = batches()
    with train.Population(
        Small, members=2, hyper={"lr": 0.01}, strategy="concurrent"
    ) as population:
        run = population.train(data, steps=[2, 6])
        seen = []
        for result in run.as_completed():
            seen.append((result.member, result.steps))
            if len(seen) == 1:
                population.copy(1, result.member)
                run.add(result.member, 3)
        assert seen == [(0, 2), (0, 3), (1, 6)]
        assert population.step(0) == 2 + 3


def test_a_run_that_is_left_early_ends():
    with train.Population(Small, members=3, strategy="stacked") as population:
        run = population.train(batches(), steps=[1, 50, 50])
        for _ in run.as_completed():
            break
        assert population.step(1) == 1
        with pytest.raises(errors.Closed):
            run.add(0, 1)
        assert len(list(population.train(batches(), steps=1).as_completed())) == 3
        running = population.train(batches(), steps=1)
        with pytest.raises(errors.InvalidArgument, match="has not ended"):
            population.train(batches(), steps=1)
        running.close()
    with pytest.raises(errors.Closed):
        population.train(batches(), steps=1)


def test_buffers_are_each_members_own():
    data = batches()
    with pytest.raises(errors.InvalidArgument, match="buffers"):
        list(
            train.Population(Normalized, members=2, strategy="stacked")
            .train(data, steps=1)
            .as_completed()
        )
    with train.Population(
        Normalized, members=3, resident=2, hyper={"lr": 0.01}, optimizer="sgd"
    ) as population:
        list(population.train(data[:1], steps=3).as_completed())
        assert population.strategy == "concurrent"
        for n in range(3):
            module, _ = alone(n, lambda p: torch.optim.SGD(p, 0.01), data[:1], 3, Normalized)
            assert_alike(population.module(n), module)
            own = dict(population.module(n).named_buffers())
            for name, buffer in module.named_buffers():
                np.testing.assert_allclose(own[name].numpy(), buffer.numpy(), rtol=1e-4, atol=1e-6)


def test_a_module_gives_all_members_its_weights():
    torch.manual_seed(5)
    module = Small()
    with train.Population(module, members=3) as population:
        for n in range(3):
            for name, array in weights(module).items():
                np.testing.assert_array_equal(weights(population.module(n))[name], array)
        list(population.train(batches(), steps=1).as_completed())
        assert not np.array_equal(
            weights(population.module(0))["out.weight"], weights(module)["out.weight"]
        )


def test_torchs_generator_is_left_alone():
    torch.manual_seed(11)
    wanted = torch.rand(3)
    torch.manual_seed(11)
    train.Population(Small, members=2).close()
    assert torch.equal(torch.rand(3), wanted)


def test_weights_and_state_are_one_piece_of_memory():
    with train.Population(Small, members=3, optimizer="adam") as population:
        module = population.module(1)
        (first, second) = (population.module(n).conv.weight.data_ptr() for n in (0, 1))
        assert (second - first) == population.take(0).floats.nbytes
        with torch.no_grad():
            module.conv.weight.fill_(2.0)
        floats = population.take(1).floats
        assert (floats == 2.0).sum() == 27


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"members": 0}, "members is 0"),
        ({"optimizer": "adamm"}, "adamm"),
        ({"strategy": "fast"}, "fast"),
        ({"hyper": {"lr": [1, 2]}}, "2 values for 3 members"),
        ({"hyper": {"momentum": 0.9}}, "Adam has no hyper-parameter 'momentum'"),
        ({"hyper": {"lr": -1.0}}, "lr"),
        ({"hyper": {"seed": [0, 1, -2]}}, "seed of member 2"),
        ({"compile": True}, "strategy='stacked'"),
        ({"model": 3}, "a torch.nn.Module, or a function"),
        ({"model": lambda: 3}, "the model is a int"),
        ({"model": torch.nn.ReLU}, "no parameter"),
        ({"model": lambda: Small().double()}, "float64"),
    ],
)
def test_wrong_options_are_refused(options, words):
    options = dict(options)
    model = options.pop("model", Small)
    with pytest.raises(errors.InvalidArgument, match=words.replace("(", r"\(")):
        train.Population(model, **{"members": 3, **options})


def test_wrong_data_is_refused():
    with train.Population(Small, members=2, strategy="concurrent") as population:
        for data, words in (
            ([], "no batch"),
            ([{"x": 1}], "dict"),
            (iter(batches(2)), "no batch|once|ended"),
        ):
            with pytest.raises(errors.InvalidArgument, match=words):
                list(population.train(data, steps=3).as_completed())
        with pytest.raises(errors.InvalidArgument, match="3 numbers for 2 members"):
            population.train(batches(), steps=[1, 2, 3])
        with pytest.raises(errors.InvalidArgument, match="steps is 0"):
            population.train(batches(), steps=0)
        with pytest.raises(errors.InvalidArgument, match="in training already"):
            population.train(batches(), steps=1, members=[0, 0])

        def broken(member, seed):
            raise ValueError("no data")

        with pytest.raises(ValueError, match="no data"):
            population.train(broken, steps=1)
        results = list(population.train(batches(), steps=np.int64(1)).as_completed())
        assert [r.steps for r in results] == [1, 1]  # nothing of the above is left


@pytest.mark.parametrize("resident", [None, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_exception_of_a_members_own_data_is_its_error(strategy, resident):
    def data(member, seed):
        if member == 2:
            return iter(batches(2))  # ends early, and cannot be begun again
        return failing() if member == 1 else batches()

    def failing():
        yield from batches(3)
        raise OSError("a file is gone")

    options = {"strategy": strategy, "resident": resident}
    with train.Population(Small, members=4, **options) as population:
        results = {r.member: r for r in population.train(data, steps=5).as_completed()}
        assert [results[member].steps for member in range(4)] == [5, 3, 2, 5]
        assert isinstance(results[1].error, OSError)
        assert "no batch" in str(results[2].error)
        assert results[0].error is results[3].error is None
        assert [population.step(member) for member in range(4)] == [5, 3, 2, 5]


def test_a_run_that_was_dropped_has_ended():
    with train.Population(Small, members=2) as population:
        population.train(batches(), steps=1)
        results = list(population.train(batches(), steps=1).as_completed())
    assert [r.steps for r in results] == [1, 1]


@pytest.mark.parametrize("of", [torch.tensor, np.array, tuple])
def test_hyper_parameters_are_any_array(of):
    rates = of([1e-3, 1e-2])
    with train.Population(Small, members=2, hyper={"lr": rates, "seed": of([3, 4])}) as population:
        found = [population.hyper(member) for member in range(2)]
    assert [hyper["seed"] for hyper in found] == [3, 4]
    np.testing.assert_allclose([hyper["lr"] for hyper in found], [1e-3, 1e-2], rtol=1e-6)


def test_too_many_members_say_how_many_fit():
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1024, 1024))

    with pytest.raises(errors.OutOfMemory, match=r"resident=\d+"):
        train.Population(Large, members=20_000)


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("nesterov", {"lr": [0.01, 0.1], "momentum": [0.5, 0.9]}),
        ("adagrad", {"lr": [0.01, 0.1], "initial": 0.5}),
        ("rmsprop", {"lr": 1e-3, "alpha": [0.9, 0.99]}),
        ("rmsprop", {"lr": 1e-3, "centered": True}),
        ("adamw", {"lr": train.Schedule.cosine(1e-2, 8).after_warmup(3), "weight_decay": [0, 1]}),
        ("sgd", {"lr": 0.1, "clip_norm": [0.1, 100.0]}),
        ("momentum", {"lr": 0.1, "clip_value": [0.01, 1.0]}),
    ],
)
def test_formulas_of_rows_on_a_device_are_those_of_the_engine(name, hyper, monkeypatch):
    states = []
    for host in (True, False):
        monkeypatch.setattr(population_torch, "_on_host", lambda device, host=host: host)
        with train.Population(
            Small, members=2, optimizer=name, hyper=hyper, strategy="stacked"
        ) as population:
            list(population.train(batches(), steps=[STEPS, STEPS - 5]).as_completed())
            states.append([population.take(n) for n in range(2)])
    for ours, theirs in zip(*states, strict=True):
        assert ours.step == theirs.step
        np.testing.assert_allclose(ours.floats, theirs.floats, rtol=2e-4, atol=2e-6)


def test_a_gradient_that_is_not_finite_stops_its_member():
    def loss(outputs, targets):
        value = torch.nn.functional.cross_entropy(outputs, targets)
        return value + torch.sqrt(value.detach() - value)  # the root of 0 has no gradient

    with train.Population(
        Small, members=2, loss=loss, optimizer="sgd", strategy="concurrent"
    ) as population:
        before = [population.take(n).floats for n in range(2)]
        for result in population.train(batches(), steps=2).as_completed():
            assert result.steps == 0
            assert "not finite" in str(result.error)
            assert np.array_equal(population.take(result.member).floats, before[result.member])


class Limited:
    """The part of an architecture that `Stacked` uses; a device with memory for three members."""

    def stacked(self):
        def compute(rows, batches, shared):
            if len(rows) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return [float(row) for row in rows]

        return compute


def test_a_device_that_is_full_says_how_many_members_fit():
    stacked = Stacked(Limited())
    assert stacked.step([0, 1, 2], None, True) == [0.0, 1.0, 2.0]
    with pytest.raises(errors.OutOfMemory, match=r"of 10 members .* one of 2 does: .* resident=2"):
        stacked.step(list(range(10)), [None] * 10, False)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_the_device_is_given_or_the_models(device):
    with train.Population(Small, members=2, device=device) as population:
        assert str(population.module(0).conv.weight.device) == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch without a usable GPU")
@pytest.mark.parametrize("device", ["cuda", "tpu7", 3.5])
def test_a_device_that_torch_cannot_use_is_refused(device):
    with pytest.raises(errors.InvalidArgument, match=r"device is .*, which torch cannot use"):
        train.Population(Small, members=2, device=device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_on_a_gpu_are_as_if_trained_alone(strategy):
    data = batches()
    with train.Population(
        Small,
        members=4,
        hyper={"lr": 0.05},
        optimizer="sgd",
        strategy=strategy,
        device="cuda",
        resident=3,
    ) as population:
        for result in population.train(data, steps=STEPS).as_completed():
            _, losses = alone(result.member, lambda p: torch.optim.SGD(p, 0.05), data, STEPS)
            np.testing.assert_allclose(result.losses, losses, rtol=1e-3)
        assert population.module(0).conv.weight.is_cuda
        state = population.take(0)
        assert torch.from_numpy(state.floats).is_pinned()
        population.put(1, state)
        assert np.array_equal(population.take(1).floats, state.floats)


@pytest.mark.slow
def test_a_compiled_call_gives_the_same():
    config = pytest.importorskip("torch._inductor.config")
    data = batches(6)
    # Otherwise torch keeps processes that compile.
    with (
        config.patch(compile_threads=1),
        train.Population(
            Small, members=4, hyper={"lr": 0.05}, optimizer="sgd", strategy="stacked", compile=True
        ) as population,
    ):
        for result in population.train(data, steps=[6, 4, 2, 1]).as_completed():
            _, losses = alone(result.member, lambda p: torch.optim.SGD(p, 0.05), data, result.steps)
            np.testing.assert_allclose(result.losses, losses, rtol=1e-4)
