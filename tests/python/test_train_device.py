"""Weights on a device: alias, Updater, Towers, publish and files.

Without a GPU the device is torch's CPU: the same code, without streams. Cases marked `gpu` are the
same on CUDA.
"""

from __future__ import annotations

import time
import uuid

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock import train  # noqa: E402
from penstock.train.device_slab import DeviceParameters  # noqa: E402

CUDA = pytest.param(
    "cuda:0",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    ],
)
PLACES = ["cpu", CUDA]
OPTIMIZERS = [
    train.SGD(0.05, weight_decay=0.01),
    train.Momentum(0.05),
    train.Nesterov(0.05, clip_norm=0.5),
    train.Adagrad(0.05, initial=0.1),
    train.RMSProp(0.01),
    train.RMSProp(0.01, centered=True),
    train.Adam(0.01, clip_value=0.01),
    train.AdamW(train.Schedule(0.01).after_warmup(3)),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 17), torch.nn.Tanh(), torch.nn.Linear(17, 16), torch.nn.Linear(16, 3)
    )


def there(device, seed=0):
    """A module on a device, and its weights, which the host does not have."""
    module = network(seed).to(device)
    if device != "cpu":
        return module, penstock.torch.alias(module)
    weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    parameters = DeviceParameters({name: tuple(w.shape) for name, w in weights.items()}, device)
    parameters.update(weights)
    return module, penstock.torch.alias(module, parameters)


def batches(count=12, rows=16):
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        x = torch.randn(rows + i % 3, 6, generator=generator)
        made.append((x, x[:, :3].argmax(1)))
    return made


def loss_of(module, batch, device="cpu"):
    x, y = batch
    return torch.nn.functional.cross_entropy(module(x.to(device)), y.to(device))


def step(batch, views):
    x, y = batch
    loss = torch.nn.functional.cross_entropy(views.model(x), y)
    loss.backward()
    return loss


def assert_near(ours, theirs, atol=2e-4):
    """`ours` and `theirs`: slabs, or dicts of arrays."""
    assert list(ours) == list(theirs)
    for name in ours:
        found, wanted = (in_memory(each[name]) for each in (ours, theirs))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=atol, err_msg=name)


def in_memory(array):
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_an_updater_has_the_formulas_of_the_host(optimizer, device):
    module, (parameters, gradients) = there(device)
    assert parameters.device == gradients.device == torch.device(device)
    other = network()
    host, host_gradients = penstock.torch.alias(other)
    ours, theirs = train.Updater(parameters, optimizer), train.Updater(host, optimizer)
    for batch in batches():
        assert ours.lr == theirs.lr
        for model, updater, slab, place in (
            (module, ours, gradients, device),
            (other, theirs, host_gradients, "cpu"),
        ):
            (3 * loss_of(model, batch, place)).backward()
            assert updater.apply(slab, 1 / 3)
            slab.zero()
        np.testing.assert_allclose(ours.norm, theirs.norm, rtol=1e-4)
    assert_near(parameters, host)
    for mine, wanted in zip(ours.slabs, theirs.slabs, strict=True):
        assert_near(mine, wanted)
    assert (ours.step, parameters.version) == (theirs.step, host.version) == (12, 12)


@pytest.mark.parametrize("device", PLACES)
def test_a_module_is_the_memory_of_its_weights(device):
    module, (parameters, gradients) = there(device)
    weight = module[0].weight
    assert weight.data_ptr() == parameters["0.weight"].data_ptr()
    parameters["0.weight"] = np.full((17, 6), 2.0)
    assert float(weight.detach().sum()) == 2.0 * 17 * 6
    loss_of(module, batches()[0], device).backward()
    assert weight.grad.data_ptr() == gradients["0.weight"].data_ptr()
    assert float(gradients["0.weight"].abs().sum()) > 0
    module.zero_grad()  # torch forgets the place
    loss_of(module, batches()[0], device).backward()
    before = gradients.copied_bytes
    train.Updater(parameters, train.SGD(0.1)).apply(gradients)
    assert gradients.copied_bytes - before == sum(p.nbytes for p in module.parameters())
    module.double()
    with pytest.raises(penstock.InvalidArgument, match="no longer a view of these weights"):
        parameters.save("never.safetensors")


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("towers", [1, 2, 3])
def test_towers_train_as_on_the_host(towers, device):
    module, (parameters, _) = there(device)
    ours = train.Towers(step, parameters, train.Adam(0.01), batches(), towers=towers, model=module)
    other = network()
    host, _ = penstock.torch.alias(other)
    theirs = train.Towers(step, host, train.Adam(0.01), batches(), towers=towers, model=other)
    found, wanted = ours.run(epochs=3), theirs.run(epochs=3)
    assert_near(parameters, host)
    assert_near(dict(module.named_parameters()), dict(other.named_parameters()))
    for name in ("updates", "rounds", "batches", "copied_bytes"):
        assert getattr(found, name) == getattr(wanted, name), name
    np.testing.assert_allclose([found.loss, found.last_loss], [wanted.loss, wanted.last_loss], 1e-4)
    assert ours._views[-1].device == torch.device(device)


@pytest.mark.parametrize("device", PLACES)
def test_towers_see_the_same_weights_in_a_round_and_the_update_in_the_next(device):
    """Steps that take long, on streams of their own: what is read is what the update wrote."""
    module, (parameters, _) = there(device)
    seen = [[], []]

    def slow(batch, views):
        if device != "cpu":
            torch.cuda._sleep(2_000_000 * (views.number + 1))
        else:
            time.sleep(0.001 * views.number)
        seen[views.number].append(views.weights["0.bias"].clone())
        for block in views.gradients.values():
            block.fill_(1.0)

    train.Towers(
        slow, parameters, train.SGD(1.0), batches(8), towers=2, model=module, weigh=lambda b: 1
    ).run()
    first = seen[0][0]
    for tower in seen:
        for number, bias in enumerate(tower):
            assert torch.allclose(bias, first - number, atol=1e-5), number


@pytest.mark.parametrize("device", PLACES)
def test_a_batch_is_kept_until_its_step_has_read_it(device):
    """Batches are made on the caller's stream, and read late by another."""
    module, (parameters, _) = there(device)
    total = []

    def late(batch, views):
        if device != "cpu":
            torch.cuda._sleep(5_000_000)
        total.append(batch.sum())
        views.gradients.zero()

    feed = (torch.full((1 << 16,), float(i), device=device) for i in range(16))
    train.Towers(late, parameters, train.SGD(0.1), feed, towers=2, model=module).run()
    assert sorted(float(each) / (1 << 16) for each in total) == list(range(16))


@pytest.mark.parametrize("device", PLACES)
def test_steps_may_return_gradients_and_need_no_module(device):
    parameters = DeviceParameters({"w": (3,)}, device)

    def step(batch, views):
        x = torch.as_tensor(batch, device=device)
        return x.mean(), {"w": x.mean(0) - views.weights["w"]}

    feed = [np.full((4, 3), n, np.float32) for n in range(6)]
    report = train.Towers(step, parameters, train.SGD(0.5), feed, towers=2).run()
    w = 0.0
    for first in (0, 2, 4):
        w -= 0.5 * (first + 0.5 - w)
    np.testing.assert_allclose(parameters["w"].cpu(), np.full(3, w), rtol=1e-6)
    assert (report.loss, report.last_loss, report.copied_bytes) == (2.5, 4.5, 6 * 12)


@pytest.mark.parametrize("device", PLACES)
def test_gradients_that_are_not_finite(device):
    def run(policy):
        parameters = DeviceParameters({"w": (2,), "v": (2, 2)}, device)

        def step(batch, views):
            views.gradients["w"].fill_(1.0)
            views.gradients["v"][1, 0] = batch
            return torch.tensor(1.0, device=device)

        towers = train.Towers(
            step, parameters, train.SGD(1.0), [0.0, float("nan"), 0.0],
            towers=1, weigh=lambda batch: 1, non_finite=policy,
        )  # fmt: skip
        return parameters, towers

    parameters, towers = run("raise")
    with pytest.raises(penstock.InvalidArgument, match=r"update 1 .*'v' is nan at \(1, 0\)") as e:
        towers.run()
    assert "round 1" in "".join(getattr(e.value, "__notes__", ["round 1"]))
    assert parameters["w"].tolist() == [-1.0, -1.0]
    assert parameters["v"].isfinite().all()
    parameters, towers = run("skip")
    report = towers.run()
    assert (report.rounds, report.updates, towers.updater.skipped, towers.updater.step) == (
        3,
        2,
        1,
        2,
    )
    assert parameters["w"].tolist() == [-2.0, -2.0]
    parameters, towers = run("count")
    assert towers.run().updates == 3
    assert (towers.updater.non_finite, towers.updater.skipped) == (1, 0)
    assert parameters["w"].tolist() == [-3.0, -3.0]
    assert parameters["v"].isnan().sum() == 1


def test_an_exception_of_a_step_ends_the_run_and_another_begins():
    module, (parameters, _) = there("cpu")
    fails = [True]

    def fragile(batch, views):
        loss = step(batch, views)
        if views.number == 1 and fails and fails.pop():
            raise RuntimeError("once")
        return loss

    before = parameters["0.weight"].clone()
    towers = train.Towers(fragile, parameters, train.SGD(0.1), batches(), towers=2, model=module)
    with pytest.raises(RuntimeError, match="once"):
        towers.run()
    assert torch.equal(parameters["0.weight"], before)
    assert towers.run().updates == 6
    other, (weights, _) = there("cpu")
    train.Towers(step, weights, train.SGD(0.1), batches(), towers=2, model=other).run()
    assert_near(parameters, weights)


@pytest.mark.parametrize("device", PLACES)
def test_states_and_files_are_those_of_the_host(device, tmp_path):
    def trained(parameters, gradients, module, updater, place, count):
        for batch in batches(count):
            loss_of(module, batch, place).backward()
            updater.apply(gradients)
            gradients.zero()

    module, (parameters, gradients) = there(device)
    updater = train.Updater(parameters, train.Adam(0.01))
    trained(parameters, gradients, module, updater, device, 5)
    updater.save(tmp_path / "run.safetensors")
    parameters.save(tmp_path / "weights.safetensors")
    other = network(1)
    host, host_gradients = penstock.torch.alias(other)
    on_host = train.Updater(host, train.Adam(0.01))
    on_host.load(tmp_path / "run.safetensors")
    assert (on_host.step, host.version) == (5, 5)
    assert_near(parameters, host, 0)
    trained(host, host_gradients, other, on_host, "cpu", 5)
    back, (weights, more) = there(device, 2)
    again = train.Updater(weights, train.Adam(0.01))
    again.restore(on_host.state())
    trained(parameters, gradients, module, updater, device, 5)
    assert (again.step, weights.version) == (10, 10)
    assert_near(parameters, weights)
    again.load(tmp_path / "run.safetensors")
    trained(weights, more, back, again, device, 5)
    assert_near(parameters, weights)
    weights.load(tmp_path / "weights.safetensors")
    assert weights.version == 5
    assert_near(train.Parameters.from_file(tmp_path / "weights.safetensors"), weights, 0)
    with pytest.raises(penstock.InvalidArgument, match="this is a state of Adam"):
        train.Updater(weights, train.SGD(0.1)).restore(again.state())


@pytest.mark.parametrize("device", PLACES)
def test_weights_are_published_with_their_version(device):
    _, (parameters, _) = there(device)
    name = f"device-{uuid.uuid4().hex}"
    parameters.version = 7
    assert train.publish(name, parameters) == 7
    try:
        parameters["0.bias"] = np.arange(17)
        assert train.publish(name, parameters) == 8
        with train.attach(name, parameters.shapes) as model, model.read() as (version, weights):
            assert version == 8
            assert_near(weights, parameters, 0)
    finally:
        train.unpublish(name)


def test_unsuitable_weights_are_refused():
    module, (parameters, _) = there("cpu")
    with pytest.raises(penstock.InvalidArgument, match="needs them in the memory of the host"):
        train.ParameterServer(parameters, train.SGD(0.1))
    with pytest.raises(penstock.InvalidArgument, match="updates of some rows are for"):
        train.Updater(parameters, train.SGD(0.1)).apply_rows("0.bias", [0], [1.0])
    with pytest.raises(penstock.InvalidArgument, match="cannot be shared"):
        train.Updater(parameters, train.SGD(0.1), shared=True)
    host = train.Parameters(parameters.shapes)
    with pytest.raises(
        penstock.InvalidArgument, match="are in the memory of the host and the parameters on cpu"
    ):
        train.Updater(parameters, train.SGD(0.1)).apply(host.gradients())
    with pytest.raises(penstock.InvalidArgument, match=r"group= is for parameters on a device"):
        train.Towers(step, host, train.SGD(0.1), [], group=object())

    def rows(batch, views):
        return {"0.bias": train.Rows([0], [1.0])}

    with pytest.raises(penstock.InvalidArgument, match="gradients are of whole blocks"):
        train.Towers(rows, parameters, train.SGD(0.1), batches(), model=module).run()

    def two_losses(batch, views):
        return torch.zeros(2)

    with pytest.raises(penstock.InvalidArgument, match="a step returned a Tensor as its loss"):
        train.Towers(two_losses, parameters, train.SGD(0.1), batches(), model=module).run()
    with pytest.raises(penstock.InvalidArgument, match="no usable device of torch"):
        train.Towers(rows, parameters, train.SGD(0.1), [], model=module, devices=["cpu", object()])
    module[0].to("meta")
    with pytest.raises(
        penstock.InvalidArgument, match=r"on meta; only .* first one is on meta|cpu"
    ):
        penstock.torch.alias(module)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("devices", [["cuda:0", "cuda:0"], ["cuda:0", "cpu"], ["cpu", "cuda:0"]])
def test_towers_on_several_devices_train_as_on_the_host(devices):
    """A tower on another device than the weights has a copy of them."""
    module, (parameters, _) = there("cuda:0")
    ours = train.Towers(
        step, parameters, train.Momentum(0.05), batches(), devices=devices, model=module
    )
    other = network()
    host, _ = penstock.torch.alias(other)
    theirs = train.Towers(step, host, train.Momentum(0.05), batches(), towers=2, model=other)
    found, wanted = ours.run(epochs=3), theirs.run(epochs=3)
    assert_near(parameters, host)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-4)
    assert [str(views.model[0].weight.device) for views in ours._views] == devices
