"""train.Hogwild(snapshot=): the weights that a step sees while others change them."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import train
from test_train_hogwild import INPUTS, fresh


@pytest.mark.parametrize("snapshot", [True, "update"])
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "replicas": 2}])
def test_a_snapshot_is_of_the_weights_as_they_are_when_a_run_begins(options, snapshot):
    seen = []

    def look(batch, views):
        seen.append(views.weights["w"].copy())
        views.gradients["w"][:] = -1

    parameters = fresh()
    hogwild = train.Hogwild(
        look, parameters, train.SGD(1.0), [0], snapshot=snapshot, **{"workers": 1, **options}
    )
    for value in (0.0, 10.0, 100.0):
        parameters["w"][:] = value
        hogwild.run(epochs=1)
        assert np.array_equal(seen.pop(), np.full(INPUTS, value))
        assert not seen
        assert np.array_equal(parameters["w"], np.full(INPUTS, value + 1))


@pytest.mark.parametrize(("snapshot", "later"), [(True, 0), ("update", 1)])
def test_weights_written_by_a_feed_are_seen_by_the_next_step_or_an_update_later(snapshot, later):
    parameters = fresh()
    seen = []

    def feed():
        for value in (10.0, 20.0, 30.0):
            parameters["w"][:] = value
            yield 0
        yield 0

    def look(batch, views):
        seen.append(views.weights["w"][0])
        views.gradients["w"][:] = -1

    train.Hogwild(look, parameters, train.SGD(1.0), feed(), workers=1, snapshot=snapshot).run()
    assert seen == ([10, 11, 21, 31] if later else [10, 20, 30, 31])


def test_a_gradient_may_be_a_snapshots_but_not_the_weights_themselves():
    def product(batch, views):
        return None, {"w": np.zeros(INPUTS, np.float32), "b": views.weights["w"][:1].reshape(())}

    parameters = fresh()
    parameters["w"][:] = 2
    options = {"workers": 1, "feed": [0]}
    train.Hogwild(product, parameters, train.SGD(1.0), snapshot=True, **options).run()
    assert parameters["b"] == -2
    for snapshot in (False, "update"):
        with pytest.raises(penstock.InvalidArgument, match=r"'b' lies in the weights.*give a copy"):
            train.Hogwild(product, parameters, train.SGD(1.0), snapshot=snapshot, **options).run()
    assert parameters["b"] == -2
