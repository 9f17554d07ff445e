"""train.Updater: errors, gradients that are not finite, rows, states."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import train


def embedding():
    rng = np.random.default_rng(0)
    return train.Parameters({"e": rng.normal(size=(50, 4)), "b": rng.normal(size=4)})


def snapshot(updater):
    slabs = (updater.parameters, *updater.slabs)
    return b"".join(array.tobytes() for slab in slabs for array in slab.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("policy", ["raise", "skip", "count"])
def test_a_non_finite_gradient_follows_the_policy(policy, bad):
    updater = train.Updater(embedding(), train.Adam(), non_finite=policy)
    gradients = updater.parameters.gradients()
    gradients["e"][:] = 1
    assert updater.apply(gradients)
    before = snapshot(updater)
    gradients["e"][7, 2] = bad
    if policy == "raise":
        with pytest.raises(penstock.InvalidArgument, match=rf"'e' is {bad} at \(7, 2\)"):
            updater.apply(gradients)
    else:
        assert updater.apply(gradients) is (policy == "count")
    assert (snapshot(updater) == before) is (policy != "count")
    assert updater.step == updater.parameters.version == (2 if policy == "count" else 1)
    assert updater.non_finite == (0 if policy == "raise" else 1)
    assert updater.skipped == (1 if policy == "skip" else 0)
    assert np.isnan(updater.parameters["e"][7, 2]) == (policy == "count")


def test_a_dict_of_arrays_is_a_gradient_too():
    by_slab = train.Updater(embedding(), train.Momentum(0.1))
    by_dict = train.Updater(embedding(), train.Momentum(0.1))
    gradients = by_slab.parameters.gradients()
    gradients["e"], gradients["b"] = np.ones((50, 4)), np.arange(4)
    for _ in range(3):
        by_slab.apply(gradients, 0.5)
        by_dict.apply({"b": np.arange(4), "e": np.ones((50, 4))}, 0.5)
    assert snapshot(by_slab) == snapshot(by_dict)
    assert by_slab.norm == pytest.approx(0.5 * np.sqrt(200 + 14))


@pytest.mark.parametrize(
    ("gradients", "text"),
    [
        ({"e": np.ones((50, 4))}, "'b' is missing"),
        ({"e": np.ones((50, 4)), "b": np.ones(5)}, r"'b' is \(4,\); these values are \(5,\)"),
        ({"e": np.ones((50, 4)), "b": np.ones(4), "x": np.ones(1)}, "no block 'x'"),
        (np.ones(4), "gradients is a ndarray"),
        (train.Parameters({"e": (50, 4)}).gradients(), "block 'b' is only here"),
    ],
)
def test_another_layout_is_refused(gradients, text):
    updater = train.Updater(embedding(), train.SGD())
    before = snapshot(updater)
    with pytest.raises(penstock.InvalidArgument, match=text):
        updater.apply(gradients)
    assert snapshot(updater) == before


def test_parameters_are_no_gradient():
    updater = train.Updater(embedding(), train.SGD())
    with pytest.raises(penstock.InvalidArgument, match="themselves"):
        updater.apply(updater.parameters)
    with pytest.raises(penstock.InvalidArgument, match="scale is nan"):
        updater.apply(updater.parameters.gradients(), float("nan"))
    with pytest.raises(penstock.InvalidArgument, match=r"give train\.Parameters"):
        train.Updater({"e": np.ones(3)}, train.SGD())
    with pytest.raises(penstock.InvalidArgument, match=r"train.Adam\(1e-3\)"):
        train.Updater(embedding(), "adam")
    with pytest.raises(penstock.InvalidArgument, match="non_finite is 'ignore'"):
        train.Updater(embedding(), train.SGD(), non_finite="ignore")


@pytest.mark.parametrize(
    "optimizer",
    [train.SGD(0.1), train.Nesterov(0.1), train.Adagrad(0.1), train.RMSProp(0.1), train.Adam(0.1)],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_rows_equal_a_dense_update_of_just_these_rows(optimizer):
    rows = np.array([7, 3, 7, 49])
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    sparse = train.Updater(embedding(), optimizer)
    dense = train.Updater(train.Parameters({"e": embedding()["e"][[3, 7, 49]]}), optimizer)
    for _ in range(3):
        sparse.apply_rows("e", rows, values)
        dense.apply({"e": np.stack([values[1], values[0] + values[2], values[3]])})
    expected = embedding()["e"]
    expected[[3, 7, 49]] = dense.parameters["e"]
    assert np.array_equal(sparse.parameters["e"], expected)
    assert np.array_equal(sparse.parameters["b"], embedding()["b"])
    assert sparse.step == sparse.parameters.version == 3


@pytest.mark.parametrize(
    ("block", "rows", "values", "error", "text"),
    [
        (
            "e",
            [50],
            np.ones((1, 4)),
            penstock.InvalidArgument,
            "'e' has 50 rows; there is no row 50",
        ),
        ("e", [-1], np.ones((1, 4)), penstock.InvalidArgument, "no row -1"),
        ("e", [1, 2], np.ones((1, 4)), penstock.InvalidArgument, r"shape \(2, 4\)"),
        ("e", [1.5], np.ones((1, 4)), penstock.InvalidArgument, "float64"),
        ("e", [1], [["x"] * 4], penstock.InvalidArgument, "dtype"),
        ("e", [1], [[1, 1, np.nan, 1]], penstock.InvalidArgument, "'e' is nan"),
        ("f", [1], np.ones((1, 4)), penstock.NotFound, "no block 'f'"),
    ],
)
def test_rows_that_cannot_be_are_refused(block, rows, values, error, text):
    updater = train.Updater(embedding(), train.Adam())
    before = snapshot(updater)
    with pytest.raises(error, match=text):
        updater.apply_rows(block, rows, values)
    assert snapshot(updater) == before
    assert updater.step == 0


def test_a_run_goes_on_from_its_state_bit_for_bit():
    def steps(updater, first, last):
        for step in range(first, last):
            rng = np.random.default_rng(step)
            updater.apply({n: rng.normal(size=a.shape) for n, a in updater.parameters.items()})

    schedule = train.Schedule.cosine(0.1, 20)
    whole = train.Updater(embedding(), train.AdamW(schedule))
    steps(whole, 0, 10)
    state = whole.state()
    steps(whole, 10, 20)

    resumed = train.Updater(train.Parameters({"e": (50, 4), "b": (4,)}), train.AdamW(schedule))
    resumed.restore(state)
    assert resumed.step == resumed.parameters.version == 10
    steps(resumed, 10, 20)
    assert snapshot(resumed) == snapshot(whole)


def test_a_state_of_another_formula_or_layout_is_refused():
    state = train.Updater(embedding(), train.Adam()).state()
    with pytest.raises(
        penstock.InvalidArgument, match=r"state of Adam with 2 slabs.*has SGD with 0"
    ):
        train.Updater(embedding(), train.SGD()).restore(state)
    other = train.Updater(train.Parameters({"e": (50, 4), "b": (5,)}), train.Adam())
    with pytest.raises(penstock.InvalidArgument, match="'b'"):
        other.restore(state)
    assert other.step == 0
    for wrong, text in [
        ({}, "no 'optimizer'"),
        ([1], "no 'optimizer'"),
        (state["parameters"], "no"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=text):
            other.restore(wrong)
    same = train.Updater(embedding(), train.Adam())
    before = snapshot(same)
    state["parameters"] = {"version": 9, "blocks": {n: a + 1 for n, a in embedding().items()}}
    state["slabs"] = [dict.fromkeys(slab, np.zeros(3)) for slab in state["slabs"]]
    with pytest.raises(penstock.InvalidArgument, match="'e'"):
        same.restore(state)
    assert snapshot(same) == before  # also the weights, which come first
    with pytest.raises(penstock.InvalidArgument, match="no 'version'"):
        other.parameters.restore({"blocks": {}})
