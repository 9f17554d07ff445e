"""penstock.torch.alias: a torch module that trains in the engine's memory."""

from __future__ import annotations

import copy
import gc
import threading
import uuid

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock import train  # noqa: E402

STEPS = 100


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 3)
    )


def batches(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(32, 6, generator=generator)
        yield x, (x[:, :3].argmax(1))


def loss_of(module, x, y):
    return torch.nn.functional.cross_entropy(module(x), y)


def weights_of(module):
    return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}


def theirs(optimizer, steps=STEPS):
    module = network()
    run = optimizer(module.parameters())
    for x, y in batches(steps):
        run.zero_grad()
        loss_of(module, x, y).backward()
        run.step()
    return weights_of(module), loss_of(module, *next(batches(1, 9))).item()


@pytest.mark.parametrize("zero", ["slab", "module", "module, to zeroes"])
@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (train.Nesterov(0.05), lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True)),
        (train.AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    ],
)
def test_a_module_trains_as_with_torchs_optimizer(ours, torchs, zero):
    module = network()
    before = weights_of(module)
    parameters, gradients = penstock.torch.alias(module)
    assert list(parameters) == [name for name, _ in module.named_parameters()]
    assert all(np.array_equal(parameters[n], w) for n, w in before.items())
    updater = train.Updater(parameters, ours)
    for x, y in batches(STEPS):
        loss_of(module, x, y).backward()
        assert updater.apply(gradients)
        if zero == "slab":
            gradients.zero()
        else:
            module.zero_grad(set_to_none=zero == "module")
    expected, loss = theirs(torchs)
    for name, weights in weights_of(module).items():
        assert weights.ctypes.data != parameters[name].ctypes.data
        assert np.array_equal(weights, parameters[name])
        # Later steps enlarge a difference by rounding.
        np.testing.assert_allclose(weights, expected[name], atol=1e-4)
    assert abs(loss_of(module, *next(batches(1, 9))).item() - loss) < 1e-4
    copies = 0 if zero != "module" else (STEPS - 1) * sum(a.nbytes for a in parameters.values())
    assert gradients.copied_bytes == copies


def test_one_step_is_torchs():
    for ours, torchs in [
        (train.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (train.Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    ]:
        module = network()
        parameters, gradients = penstock.torch.alias(module)
        loss_of(module, *next(batches(1))).backward()
        train.Updater(parameters, ours).apply(gradients)
        for name, expected in theirs(torchs, 1)[0].items():
            np.testing.assert_allclose(parameters[name], expected, atol=1e-6)


def test_parameters_and_gradients_are_views_that_outlive_the_slabs():
    module = network()
    parameters, gradients = penstock.torch.alias(module)
    for name, parameter in module.named_parameters():
        assert parameter.data_ptr() == parameters[name].ctypes.data
        assert parameter.grad.data_ptr() == gradients[name].ctypes.data
        assert parameter.is_leaf
        assert parameter.requires_grad
    loss_of(module, *next(batches(1))).backward()
    assert gradients["0.weight"].any()
    weights = weights_of(module)
    del parameters, gradients
    gc.collect()
    assert all(np.array_equal(w, weights[n]) for n, w in weights_of(module).items())
    other = copy.deepcopy(module)
    assert other[0].weight.data_ptr() != module[0].weight.data_ptr()


def test_a_parameter_that_a_batch_did_not_reach_has_a_gradient_of_zero():
    module = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
    parameters, gradients = penstock.torch.alias(module)
    updater = train.Updater(parameters, train.SGD(1.0))
    for used in (0, 1):
        before = {name: array.copy() for name, array in parameters.items()}
        module.zero_grad()
        module[used](torch.ones(3, 2)).sum().backward()
        updater.apply(gradients)
        for name, array in parameters.items():
            assert np.array_equal(array, before[name]) == (not name.startswith(str(used)))


def test_frozen_and_tied_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[0].bias.requires_grad_(False)
    module[1].weight = module[0].weight
    frozen = module[0].bias.data_ptr()
    parameters, _ = penstock.torch.alias(module)
    assert list(parameters) == ["0.weight", "1.bias"]
    assert module[0].bias.data_ptr() == frozen
    assert module[1].weight.data_ptr() == parameters["0.weight"].ctypes.data


def test_parameters_that_cannot_be_views_are_refused_and_unchanged():
    module = network()
    module[2].half()
    before = module[0].weight.data_ptr()
    with pytest.raises(penstock.InvalidArgument, match=r"'2.weight' is torch.float16 on cpu"):
        penstock.torch.alias(module)
    assert module[0].weight.data_ptr() == before
    with pytest.raises(penstock.InvalidArgument, match="no parameter"):
        penstock.torch.alias(torch.nn.Tanh())
    with pytest.raises(penstock.InvalidArgument, match=r"'0.weight' is \(2, 2\) in the parameters"):
        penstock.torch.alias(
            torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False)),
            train.Parameters({"0.weight": (2, 2)}),
        )


def test_a_module_that_left_its_views_is_noticed():
    module = network()
    parameters, gradients = penstock.torch.alias(module)
    updater = train.Updater(parameters, train.SGD())
    replica = network()
    _, own = penstock.torch.alias(replica, parameters)
    assert updater.apply(own)
    for moved, slab in ((replica, own), (module, gradients)):
        moved.double().float()
        with pytest.raises(penstock.InvalidArgument, match=r"'0.weight' .* alias the module again"):
            updater.apply(slab)
    assert updater.step == 1


def test_weights_that_a_module_has_left_are_not_handed_out(tmp_path):
    module = torch.nn.Linear(2, 1)
    parameters, _ = penstock.torch.alias(module)
    copy_of = train.Parameters({name: array.shape for name, array in parameters.items()})
    name = f"test-{uuid.uuid4().hex}"
    readers = (
        lambda: train.publish(name, parameters),
        lambda: parameters.save(tmp_path / "weights.safetensors"),
        parameters.state,
        lambda: copy_of.copy_from(parameters),
        lambda: train.Updater(parameters, train.SGD()).save(tmp_path / "all.safetensors"),
    )
    for read in readers:
        read()
    module.to(torch.float64)
    for read in readers:
        with pytest.raises(penstock.InvalidArgument, match=r"'weight' .* alias the module again"):
            read()
    with train.attach(name) as model:
        assert model.version == 0  # of the first parameters
    train.unpublish(name)
    with pytest.raises(penstock.InvalidArgument, match="alias the module again"):
        train.publish(name, parameters)
    with pytest.raises(penstock.NotFound):  # an error does not reserve the name
        train.unpublish(name)


def test_gradients_that_torch_put_elsewhere_are_copied_from():
    module = torch.nn.Linear(2, 1)
    parameters, gradients = penstock.torch.alias(module)
    module.zero_grad()
    module(torch.ones(1, 2)).sum().backward()
    sums = parameters.gradients()
    sums.copy_from(gradients)
    assert sums["weight"].tolist() == [[1, 1]]


def test_threads_train_replicas_on_the_same_weights():
    first = network()
    parameters, gradients = penstock.torch.alias(first)
    second = network(1)
    same, own = penstock.torch.alias(second, parameters)
    assert second[0].weight.data_ptr() == first[0].weight.data_ptr()
    assert second[0].weight.grad.data_ptr() != first[0].weight.grad.data_ptr()
    assert np.array_equal(same["0.weight"], parameters["0.weight"])
    updater = train.Updater(parameters, train.SGD(0.05))
    before = loss_of(first, *next(batches(1, 9))).item()
    errors = []

    def work(module, slab, seed):
        try:
            for x, y in batches(100, seed):
                loss_of(module, x, y).backward()
                updater.apply(slab)
                slab.zero()
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in ((first, gradients, 1), (second, own, 2))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert updater.step == parameters.version == same.version == 200
    assert loss_of(first, *next(batches(1, 9))).item() < before
