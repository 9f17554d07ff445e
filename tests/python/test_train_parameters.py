"""train.Parameters: named blocks of float32 in the engine's memory, as NumPy arrays."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import penstock
from penstock import train


def test_blocks_are_views_of_one_piece_of_memory():
    parameters = train.Parameters(
        {"w": (784, 10), "b": (10,), "scalar": (), "n": 3, "none": (0, 2)}
    )
    assert list(parameters) == ["w", "b", "scalar", "n", "none"]
    assert [a.shape for a in parameters.values()] == [(784, 10), (10,), (), (3,), (0, 2)]
    for array in parameters.values():
        assert array.dtype == np.float32
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0
        assert not array.any()
    parameters["w"][3, 4] = 5
    assert parameters["w"][3, 4] == 5
    assert parameters["b"].ctypes.data - parameters["w"].ctypes.data == 7840 * 4
    assert parameters.size == 7854
    assert parameters.nbytes == (7840 + 16 + 16 + 16) * 4
    assert parameters.version == 0


def test_arrays_of_any_real_dtype_are_copied_in():
    w = np.arange(6.0).reshape(2, 3)
    parameters = train.Parameters({"w": w, "t": w.T, "i": np.array([1, 2]), "s": np.float32(7)})
    w[:] = -1
    assert np.array_equal(parameters["w"], np.arange(6).reshape(2, 3))
    assert np.array_equal(parameters["t"], np.arange(6).reshape(2, 3).T)
    assert parameters["i"].tolist() == [1, 2]
    assert parameters["s"] == 7
    assert parameters.copied_bytes == (6 + 6 + 2 + 1) * 4


def test_assigning_copies_and_adding_in_place_does_not():
    parameters = train.Parameters({"w": (2, 3)})
    view = parameters["w"]
    parameters["w"] = np.full((2, 3), 0.5)
    assert view[0, 0] == 0.5
    copied = parameters.copied_bytes
    parameters["w"] += 1
    assert view[1, 2] == 1.5
    assert parameters.copied_bytes == copied == 24


def test_a_view_outlives_its_slab():
    view = train.Parameters({"w": np.arange(1000)})["w"]
    gc.collect()
    train.Parameters({"w": (1000,)})
    assert view.tolist() == list(range(1000))


def test_gradients_have_the_same_blocks_and_their_own_memory():
    parameters = train.Parameters({"w": np.ones((2, 3)), "b": (3,)})
    gradients = parameters.gradients()
    assert type(gradients) is train.Slab
    assert [(n, a.shape) for n, a in gradients.items()] == [("w", (2, 3)), ("b", (3,))]
    assert not gradients["w"].any()
    gradients.copy_from(parameters)
    assert gradients["w"].all()
    gradients.zero()
    assert not gradients["w"].any()
    assert parameters["w"].all()
    with pytest.raises(
        penstock.InvalidArgument, match=r"block 'b' is \(3,\) here and \(4,\) there"
    ):
        gradients.copy_from(train.Parameters({"w": (2, 3), "b": (4,)}))


@pytest.mark.parametrize("shared", [False, True])
def test_a_forked_child_shares_what_is_shared(shared):
    parameters = train.Parameters({"w": (3,)}, shared=shared)
    assert parameters.shared is shared
    pid = os.fork()
    if pid == 0:
        parameters["w"][:] = 8
        parameters.version = 4
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert parameters["w"].tolist() == ([8, 8, 8] if shared else [0, 0, 0])
    assert parameters.version == (4 if shared else 0)


def test_a_state_leads_back():
    parameters = train.Parameters({"w": np.arange(4), "b": (2,)})
    parameters.version = 12
    state = parameters.state()
    parameters["w"] += 1
    parameters.version = 13
    parameters.restore(state)
    assert parameters["w"].tolist() == [0, 1, 2, 3]
    assert parameters.version == 12
    for blocks, text in [
        ({"w": np.ones(4)}, "'b' is missing"),
        ({"w": np.ones(4), "b": np.ones(2), "c": np.ones(1)}, "no block 'c'"),
        ({"w": np.ones(4), "b": np.ones(3)}, r"'b' is \(2,\); these values are \(3,\)"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=text):
            parameters.restore({"version": 1, "blocks": blocks})
    assert parameters["w"].tolist() == [0, 1, 2, 3]
    assert parameters.version == 12


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ({}, "no blocks"),
        ([("w", (1,))], "give a dict"),
        ({1: (2,)}, "1 is not a valid block name"),
        ({"": (2,)}, "no name"),
        ({"\ud800": (2,)}, "is no name; give a str of UTF-8"),
        ({"w": (1 << 70,)}, "give a shape"),
        ({"__metadata__": (2,)}, "__metadata__"),
        ({"w": (2, -1)}, r"'w' cannot have the shape \(2, -1\)"),
        ({"w": (2.5,)}, r"'w' is \(2.5,\); give a shape"),
        ({"w": "text"}, "'w' has dtype"),
        ({"w": np.ones(2, complex)}, "'w' has dtype complex128"),
        ({"w": object()}, "'w'"),
    ],
)
def test_invalid_blocks_are_refused_by_name(blocks, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        train.Parameters(blocks)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda p: p.copy_from({}), "other is a dict; give Parameters or another train.Slab"),
        (lambda p: p.save("never", dtype=None), "dtype is a NoneType; give a str"),
        (lambda p: setattr(p, "version", 1.5), "version is 1.5; give an integer"),
        (lambda p: setattr(p, "version", -1), "version is -1; give 0 or more"),
        (lambda p: p.restore({"version": "x", "blocks": {"w": np.ones(2)}}), "version is 'x'"),
    ],
)
def test_a_wrong_argument_is_named_and_changes_nothing(wrong, text):
    parameters = train.Parameters({"w": (2,)})
    with pytest.raises(penstock.InvalidArgument, match=text):
        wrong(parameters)
    assert not parameters["w"].any()
    parameters.version = np.int64(3)
    assert parameters.version == 3


def test_too_much_memory_is_an_error():
    with pytest.raises(penstock.OutOfMemory, match="bytes"):
        train.Parameters({"w": (1 << 44,)})


def test_names_and_shapes_are_checked_on_use():
    parameters = train.Parameters({"w": (2,), "b": (1,)})
    with pytest.raises(penstock.NotFound, match="no block 'v'; there are 'w', 'b'"):
        parameters["v"]
    with pytest.raises(penstock.InvalidArgument, match=r"'w' is \(2,\); these values are \(3,\)"):
        parameters["w"] = np.ones(3)
    assert "v" not in parameters
    assert parameters.get("v") is None
    assert "w: (2,)" in repr(parameters)


def test_torch_sees_the_same_memory():
    torch = pytest.importorskip("torch")
    parameters = train.Parameters({"w": torch.ones(2, 3, requires_grad=True)})
    for tensor in (torch.from_numpy(parameters["w"]), torch.from_dlpack(parameters["w"])):
        tensor += 1
    assert parameters["w"].tolist() == [[3, 3, 3]] * 2


def test_half_precision_of_torch_is_taken():
    torch = pytest.importorskip("torch")
    halves = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    parameters = train.Parameters({"w": halves, "v": halves.detach().to(torch.float16)})
    assert parameters["w"].tolist() == parameters["v"].tolist() == [1.5, -2]
    parameters["w"] = 2 * halves
    assert parameters["w"].tolist() == [3, -4]
    updater = train.Updater(parameters, train.SGD(1.0))
    updater.apply({"w": halves, "v": halves})
    assert parameters["w"].tolist() == [1.5, -2]


def test_jax_arrays_are_copied_and_counted():
    jax = pytest.importorskip("jax")
    parameters = train.Parameters({"w": (2,)})
    parameters["w"] = jax.numpy.ones(2)
    parameters["w"] = jax.numpy.full(2, 1.5, jax.numpy.bfloat16)
    assert parameters["w"].tolist() == [1.5, 1.5]
    assert parameters.copied_bytes == 16
