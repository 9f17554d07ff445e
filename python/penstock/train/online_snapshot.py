"""The snapshot of an Online run: one file with a model's state, replaced as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from typing import Any

import numpy as np

from ..errors import DataLoss, InvalidArgument
from .rows import array_of

_TREE = "tree"


def write_snapshot(file: str, state: Any) -> None:
    """Replace the file by one with this state: a nest of arrays, numbers, text and bytes.

    The old file is whole until the new one is on the disk.
    """
    arrays: dict[str, Any] = {}
    tree = json.dumps(_encoded(state, arrays)).encode()
    folder = os.path.dirname(os.path.abspath(file))
    os.makedirs(folder, exist_ok=True)
    new = f"{file}.new"  # of a killed process, it is overwritten by the next one
    try:
        with open(new, "wb") as into:
            np.savez(into, **{_TREE: np.frombuffer(tree, np.uint8), **arrays})
            into.flush()
            os.fsync(into.fileno())
        os.replace(new, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_snapshot(file: str) -> Any:
    """Return a snapshot's state. Nothing is unpickled."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return _decoded(json.loads(arrays[_TREE].tobytes()), arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DataLoss(f"{file} is no snapshot, or is damaged: {error}", "Online") from error


def _encoded(value: Any, arrays: dict[str, Any]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, dict):
        pairs = [[_encoded(key, arrays), _encoded(each, arrays)] for key, each in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encoded(each, arrays) for each in value]}
    array = array_of(value)
    if array.dtype.kind not in "biufc":
        raise InvalidArgument(
            f"the model's state has a {type(value).__name__}; give arrays, numbers and text",
            "Online",
        )
    name = f"array{len(arrays)}"
    arrays[name] = array
    return {"array": name}


def _decoded(value: Any, arrays: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        return arrays[inner]
    if kind == "bytes":
        return inner.encode("latin-1")
    if kind == "dict":
        return {_hashable(_decoded(key, arrays)): _decoded(each, arrays) for key, each in inner}
    values = [_decoded(each, arrays) for each in inner]
    return tuple(values) if kind == "tuple" else values


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
