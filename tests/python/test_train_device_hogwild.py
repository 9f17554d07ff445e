"""train.Hogwild with weights on a device. Without a GPU the device is torch's CPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock import train  # noqa: E402
from penstock.train.device_slab import DeviceParameters  # noqa: E402
from test_train_device import PLACES, assert_near, batches, network, step, there  # noqa: E402


def put(feed, device):
    return [(x.to(device), y.to(device)) for x, y in feed]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("optimizer", [train.SGD(0.05), train.Adam(0.01)], ids=repr)
def test_one_worker_trains_as_on_the_host(device, optimizer):
    module, (parameters, _) = there(device)
    ours = train.Hogwild(
        step, parameters, optimizer, put(batches(), device), workers=1, model=module
    )
    other = network()
    host, _ = penstock.torch.alias(other)
    theirs = train.Hogwild(step, host, optimizer, batches(), workers=1, model=other)
    found, wanted = ours.run(epochs=2), theirs.run(epochs=2)
    assert_near(parameters, host)
    assert (found.steps, found.updates, found.staleness) == (24, 24, {0: 24})
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-4)
    assert ours.updater.step == parameters.version == 24


@pytest.mark.parametrize("device", PLACES)
def test_no_update_of_several_workers_is_lost(device):
    """Each step adds one to every weight: updates are exact sums of small integers."""
    parameters = DeviceParameters({"w": (1 << 16,)}, device)

    def ones(batch, views):
        if device != "cpu":
            torch.cuda._sleep(100_000 * (batch % 3))
        views.gradients["w"].fill_(-1.0)
        return float(batch)

    hogwild = train.Hogwild(ones, parameters, train.SGD(1.0), range(200), workers=4)
    report = hogwild.run()
    assert (report.steps, report.updates, parameters.version) == (200, 200, 200)
    assert torch.equal(parameters["w"].cpu(), torch.full((1 << 16,), 200.0))
    assert sum(report.staleness.values()) == 200
    assert report.loss == 99.5


@pytest.mark.parametrize("device", PLACES)
def test_workers_train_at_the_same_time_and_share_the_weights(device):
    module, (parameters, _) = there(device)
    both = threading.Barrier(2, timeout=30)
    models = {}

    def together(batch, views):
        models[views.number] = views.model
        if views.step == 0:
            both.wait()
        return step(batch, views)

    hogwild = train.Hogwild(
        together, parameters, train.SGD(0.1), put(batches(64), device), workers=2, model=module
    )
    report = hogwild.run(epochs=4)
    assert models[0] is module
    assert models[1] is not module
    first, second = (dict(model.named_parameters()) for model in models.values())
    assert all(first[name].data_ptr() == second[name].data_ptr() for name in first)
    assert report.recent_loss < 0.8 * np.log(3)
    assert report.updates == 256


@pytest.mark.parametrize("policy", ["raise", "skip", "count"])
def test_gradients_that_are_not_finite(policy):
    parameters = DeviceParameters({"w": (2,)}, "cpu")

    def some(batch, views):
        views.gradients["w"].fill_(batch)

    feed = [1.0, float("inf"), 1.0]
    hogwild = train.Hogwild(some, parameters, train.SGD(1.0), feed, workers=1, non_finite=policy)
    if policy == "raise":
        with pytest.raises(penstock.InvalidArgument, match=r"block 'w' is inf at \(0,\)"):
            hogwild.run()
        assert parameters["w"].tolist() == [-1.0, -1.0]
        return
    report = hogwild.run()
    skips = policy == "skip"
    assert (report.updates, report.skipped, report.non_finite) == (3 - skips, int(skips), 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_multiprocessing", True),
        ("state", "own"),
        ("snapshot", True),
        ("snapshot", "update"),
        ("replicas", 2),
    ],
)
def test_options_that_a_device_cannot_have_are_refused(name, value):
    module, (parameters, _) = there("cpu")
    with pytest.raises(penstock.InvalidArgument, match=f"{name} is .* the weights are on cpu"):
        train.Hogwild(
            step, parameters, train.SGD(0.1), [], workers=2, model=module, **{name: value}
        )
