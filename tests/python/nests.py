"""Nests of Python values: all kinds, elements of each kind, and their conversion to a block."""

from __future__ import annotations

import collections
import struct
from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import penstock
from penstock import _engine

QUICK = settings(max_examples=100, deadline=None, database=None)


class Pair(NamedTuple):
    first: object
    second: object


def batch_of(elements, rows=None):
    spec, block = _engine.pack_elements(elements)
    return _engine.unpack_block(spec, len(elements) if rows is None else rows, block)


def row_of(elements, row):
    spec, block = _engine.pack_elements(elements)
    return _engine.unpack_block(spec, len(elements), block, row)


def nest_of(element):
    """The nest's text, which follows the leaves in a spec."""
    spec, _ = _engine.pack_elements([element])
    (leaves,) = struct.unpack_from("=I", spec)
    at = 4
    for _ in range(leaves):
        _, _, axes, name = struct.unpack_from("=BBHI", spec, at)
        at += 8 + name + 8 * axes
    return spec[at:].decode()


def names_of(element):
    spec, _ = _engine.pack_elements([element])
    (leaves,) = struct.unpack_from("=I", spec)
    at, names = 4, []
    for _ in range(leaves):
        _, _, axes, name = struct.unpack_from("=BBHI", spec, at)
        names.append(spec[at + 8 : at + 8 + name].decode())
        at += 8 + name + 8 * axes
    return names


def spec_bytes(names, nest):
    """A spec of numbers with these names and this nest."""
    spec = struct.pack("=I", len(names))
    for name in names:
        spec += struct.pack("=BBHI", 0, 4, 0, len(name.encode())) + name.encode()
    return spec + nest


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
KEYS = st.text("abcé_. 1", max_size=5)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)

LEAVES = st.one_of(
    st.sampled_from(["int", "float", "bool", "complex", "bytes", "str"]).map(lambda k: (k,)),
    st.tuples(st.just("scalar"), st.sampled_from(DTYPES)),
    st.tuples(st.just("array"), st.sampled_from(DTYPES), SHAPES),
    st.tuples(st.just("large"), st.sampled_from(["u1", "f8"]), st.just((13, 50, 2))),
    st.tuples(st.just("swapped"), st.sampled_from([">i4", ">f8"]), SHAPES),
    st.tuples(st.just("strided"), st.sampled_from(["i2", "f8"]), st.just((30, 40))),
    st.tuples(st.just("ragged"), st.sampled_from(DTYPES), SHAPES.filter(len), st.just((0,))),
    st.tuples(st.just("ragged"), st.sampled_from(DTYPES), st.just((2, 3, 2)), st.just((0, 2))),
    st.tuples(st.just("ragged"), st.sampled_from(DTYPES), st.just((2, 3)), st.just((1,))),
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4).map(lambda d: ("dict", d)),
        st.lists(inner, max_size=4).map(lambda items: ("list", items)),
        st.lists(inner, max_size=4).map(lambda items: ("tuple", items)),
        st.tuples(inner, inner).map(lambda items: ("pair", items)),
    ),
    max_leaves=8,
)


def random_array(rng, dtype, shape):
    raw = np.frombuffer(rng.randbytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
    if np.dtype(dtype).kind == "b":
        raw = raw & 1
    return raw.view(dtype).reshape(shape).copy()


def element_of(kind, rng):
    """An element of such a nest; all variable lengths differ from element to element."""
    match kind:
        case ("dict", inner):
            return {key: element_of(item, rng) for key, item in inner.items()}
        case ("list", inner):
            return [element_of(item, rng) for item in inner]
        case ("tuple", inner):
            return tuple(element_of(item, rng) for item in inner)
        case ("pair", inner):
            return Pair(*(element_of(item, rng) for item in inner))
        case ("int",):
            return rng.randrange(-(2**63), 2**63)
        case ("float",):
            return rng.random()
        case ("bool",):
            return rng.random() < 0.5
        case ("complex",):
            return complex(rng.random(), rng.random())
        case ("bytes",):
            return rng.randbytes(rng.randrange(5))
        case ("str",):
            return "".join(rng.choices("aé\u20ac\0\U0001f600", k=rng.randrange(5)))
        case ("scalar", dtype):
            return random_array(rng, dtype, ())[()]
        case ("array" | "large" | "swapped", dtype, shape):
            return random_array(rng, dtype, shape)
        case ("strided", dtype, shape):
            return random_array(rng, dtype, shape).T[::2, ::-1]
        case ("ragged", dtype, shape, axes):
            own = [rng.randrange(4) if axis in axes else n for axis, n in enumerate(shape)]
            return penstock.ragged(random_array(rng, dtype, own), axes)
    raise AssertionError(kind)


def collides(kind):
    """Two leaves whose paths are the same: "a/b" in a dict, and "b" below "a"."""
    taken = collections.Counter()

    def walk(kind, path):
        match kind:
            case ("dict", inner):
                for key, item in inner.items():
                    walk(item, [*path, key])
            case ("list" | "tuple" | "pair", inner):
                names = Pair._fields if kind[0] == "pair" else range(len(inner))
                for name, item in zip(names, inner, strict=True):
                    walk(item, [*path, str(name)])
            case _:
                taken["/".join(path)] += 1

    walk(kind, [])
    return any(n > 1 for n in taken.values())
