"""Classes of named tuples, found again by their names. Called by the extension."""

from __future__ import annotations

import collections
import functools
import sys
from typing import Any


def named_tuple(module: str, name: str, fields: tuple[str, ...]) -> Any:
    """Find the class of a named tuple, or make one like it.

    The names may come from a file, so nothing is imported: a class is found if its module is
    there already and it has these fields.
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    same = isinstance(found, type) and issubclass(found, tuple)
    if same and getattr(found, "_fields", None) == fields:
        return found
    return _like(name.rpartition(".")[2], fields)


@functools.lru_cache(maxsize=1024)
def _like(name: str, fields: tuple[str, ...]) -> Any:
    # Fields such as "_0" are those that NumPy's and pandas' named tuples got by rename=True.
    made = collections.namedtuple(name, fields, rename=True)  # type: ignore[misc]
    if made._fields != fields:
        raise ValueError(f"no fields of a named tuple: {fields}")
    return made
