"""Arrow tables of every type, with the values that their elements have."""

from __future__ import annotations

import numpy as np
import pytest

from contract import assert_same

pa = pytest.importorskip("pyarrow")

ROWS = 50

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64"]
TIMES = {
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32": pa.time32("ms"),
    "time64": pa.time64("us"),
    "timestamp": pa.timestamp("us", tz="Europe/Berlin"),
    "duration": pa.duration("s"),
}


def text(i):
    return "äö" * (i % 9) + "x" * (i % 5)


def numeric_columns(rows):
    """Columns, and the array of each that elements are rows of."""
    numbers = np.arange(rows)
    made = {}
    for name in DTYPES:
        values = numbers.astype(name)
        made[name] = pa.array(values), values
    for name, kind in TIMES.items():
        values = numbers * 86_400_000 if name == "date64" else numbers
        stored = np.int32 if kind.bit_width == 32 else np.int64
        made[name] = pa.array(values.astype(stored)).cast(kind), values.astype(np.int64)
    made["bool"] = pa.array(numbers % 3 == 0), numbers % 3 == 0
    matrix = np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), 3)
    made["matrix"] = pa.FixedSizeListArray.from_arrays(lists, 2), matrix
    tensors = pa.fixed_shape_tensor(pa.float32(), (3, 2))
    flat = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), 6)
    made["tensor"] = (
        pa.ExtensionArray.from_storage(tensors, flat),
        matrix.reshape(rows, 3, 2),
    )
    flags = np.arange(rows * 3).reshape(rows, 3) % 2 == 0
    made["flags"] = pa.FixedSizeListArray.from_arrays(pa.array(flags.reshape(-1)), 3), flags
    return made


def other_columns(rows):
    """Columns, and the values of their elements."""
    texts = [text(i) for i in range(rows)]
    raw = [t.encode() for t in texts]
    lists = [np.arange(i % 4, dtype=np.int16) for i in range(rows)]
    pairs = [np.arange(2 * (i % 3), dtype=np.float64).reshape(-1, 2) for i in range(rows)]
    deep = [np.full((i % 3, i % 2 + 1 if i % 3 else 0), i, np.int64) for i in range(rows)]
    halves = [np.arange(i % 3) % 2 == 0 for i in range(rows)]
    days = [np.arange(i % 3) for i in range(rows)]
    coded = [f"k{i % 7}" for i in range(rows)]
    to_lists = lambda arrays: [a.tolist() for a in arrays]  # noqa: E731
    return {
        "string": (pa.array(texts), texts),
        "large_string": (pa.array(texts, pa.large_string()), texts),
        "string_view": (pa.array(texts, pa.string_view()), texts),
        "binary": (pa.array(raw, pa.binary()), raw),
        "large_binary": (pa.array(raw, pa.large_binary()), raw),
        "binary_view": (pa.array(raw, pa.binary_view()), raw),
        "fixed_binary": (pa.array([b"abc"] * rows, pa.binary(3)), [b"abc"] * rows),
        "list": (pa.array(to_lists(lists), pa.list_(pa.int16())), lists),
        "large_list": (pa.array(to_lists(lists), pa.large_list(pa.int16())), lists),
        "pairs": (pa.array(to_lists(pairs), pa.list_(pa.list_(pa.float64(), 2))), pairs),
        "deep": (pa.array(to_lists(deep), pa.list_(pa.list_(pa.int64()))), deep),
        "bools": (pa.array(to_lists(halves), pa.list_(pa.bool_())), halves),
        "days": (pa.array(to_lists(days), pa.list_(pa.int32())).cast(pa.list_(pa.date32())), days),
        "coded": (pa.array(coded).dictionary_encode(), coded),
        "coded_lists": (
            pa.DictionaryArray.from_arrays(
                pa.array(np.arange(rows, dtype=np.uint8) % 4),
                pa.array(to_lists(lists[:4]), pa.list_(pa.int16())),
            ),
            [lists[i % 4] for i in range(rows)],
        ),
        "list_of_coded": (
            pa.ListArray.from_arrays(
                pa.array(np.arange(rows + 1, dtype=np.int32)),
                pa.array([i % 5 * 10 for i in range(rows)]).dictionary_encode(),
            ),
            [np.array([i % 5 * 10]) for i in range(rows)],
        ),
    }


def columns(rows=ROWS):
    return {
        **{name: (a, list(v)) for name, (a, v) in numeric_columns(rows).items()},
        **other_columns(rows),
    }


def whole(rows=ROWS):
    made = columns(rows)
    inner = pa.StructArray.from_arrays([made["int32"][0], made["string"][0]], ["n", "t"])
    outer = pa.StructArray.from_arrays([inner, made["bool"][0]], ["in", "flag"])
    table = pa.table({**{name: column for name, (column, _) in made.items()}, "struct": outer})
    values = {name: value for name, (_, value) in made.items()}
    values["struct"] = [
        {"in": {"n": n, "t": t}, "flag": b}
        for n, t, b in zip(values["int32"], values["string"], values["bool"], strict=True)
    ]
    return table, [{name: value[i] for name, value in values.items()} for i in range(rows)]


def same(got, wanted):
    """Equal, without the class of ragged arrays."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert_same(plain(one), plain(other))


def plain(value):
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return np.asarray(value) if isinstance(value, np.ndarray) else value
