"""The snapshot of an Online run: one file with a model's state, replaced as a whole."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

import numpy as np

from ..base.output_file import OutputFile
from ..errors import DataLoss, InvalidArgument
from .rows import array_of

_TREE = "tree"
# What NumPy, zipfile and json raise for files that are no snapshot.
_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError),
    zipfile.BadZipFile,
)


def write_snapshot(file: str, state: Any) -> None:
    """Replace the file by one with this state: a nest of dicts, lists, tuples, arrays, numbers,
    text and bytes.

    The old file is whole until the new one is on the disk.
    """
    arrays: dict[str, Any] = {}
    tree = json.dumps(_encoded(state, arrays)).encode()
    os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
    new = OutputFile(file)
    try:
        np.savez(new, **{_TREE: np.frombuffer(tree, np.uint8), **arrays})
        new.publish()
    except BaseException:
        new.discard()
        raise


def read_snapshot(file: str) -> Any:
    """Return a snapshot's state. Nothing is unpickled."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return _decoded(json.loads(arrays[_TREE].tobytes()), arrays)
    except _DAMAGE as error:
        raise DataLoss(f"{file} is no snapshot, or is damaged: {error}", "Online") from error


def _encoded(value: Any, arrays: dict[str, Any]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        pairs = [[_encoded(key, arrays), _encoded(each, arrays)] for key, each in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encoded(each, arrays) for each in value]}
    array = array_of(value)
    if array.dtype.kind not in "biufc":
        raise InvalidArgument(
            f"the model's state has a {type(value).__name__}; give arrays, numbers, text and bytes",
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
        return bytes.fromhex(inner)
    if kind == "dict":
        return {_hashable(_decoded(key, arrays)): _decoded(each, arrays) for key, each in inner}
    values = [_decoded(each, arrays) for each in inner]
    return tuple(values) if kind == "tuple" else values


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
