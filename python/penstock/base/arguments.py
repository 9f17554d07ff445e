"""Checks of arguments: each error names the argument, its value and the accepted values."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..errors import InvalidArgument
from .ranks import rank_and_world

MOST_ROWS = (1 << 31) - 1  # of a batch
MOST_QUEUED = 1 << 16  # batches
MOST_STREAMS = 1 << 12  # of one generator function
_MOST = (1 << 63) - 1

_P = ParamSpec("_P")
_R = TypeVar("_R")


def old_names(
    meanings: dict[Any, Any] | None = None, /, **names: str
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function accept old names of options: ``old_names(retry="timeout")``.

    `meanings` maps old values to new ones; other values are not changed.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **options: _P.kwargs) -> _R:
            for old in names.keys() & options.keys():
                new, value = names[old], options.pop(old)
                if new in options:
                    raise TypeError(f"{old} is the old name of {new}: give {new} alone")
                now = [then for was, then in (meanings or {}).items() if was == value]
                options[new] = now[0] if now else value
            return function(*args, **options)

        return call

    return decorate


def integer(name: str, value: Any, least: int, most: int = _MOST, *, operation: str) -> int:
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{name} is {value!r}; give an integer", operation) from None
    if number < least:
        raise InvalidArgument(f"{name} is {number}; give {least} or more", operation)
    if number > most:
        raise InvalidArgument(f"{name} is {number}; give {most} at most", operation)
    return int(number)


def real(name: str, value: Any, operation: str) -> float:
    """Convert a number of Python or of a framework; a string is an error."""
    try:
        return float(value.__float__())
    except Exception:  # arrays raise exceptions of their framework
        raise InvalidArgument(f"{name} is {value!r}; give a number", operation) from None


def flag(name: str, value: Any, operation: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name} is {value!r}; give True or False", operation)
    return bool(value)


def path(value: Any, operation: str) -> str:
    """A file name, as `os.fsdecode` returns it; it need not be UTF-8."""
    try:
        name = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgument(f"{value!r} is not a path", operation) from None
    if b"\0" in name:
        raise InvalidArgument(f"{value!r} contains a zero byte", operation)
    return os.fsdecode(name)


def text(value: Any, operation: str) -> str:
    """A name for the engine: a `str` that can be encoded as UTF-8."""
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidArgument(f"{value!r} is no name; give a str of UTF-8", operation) from None
    return str(value)


def string(name: str, value: Any, operation: str) -> str:
    """A `str` that can be encoded as UTF-8. It may be a secret: errors do not show it."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is a {type(value).__name__}; give a str", operation)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} has no UTF-8; give a str that has", operation) from None
    return value


def leaf(name: str, value: Any, operation: str) -> str:
    """A leaf's name."""
    if not isinstance(value, str):
        raise InvalidArgument(
            f'{name} is {value!r}; give the name of a leaf, such as "image" or "0"', operation
        )
    return text(value, operation)


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """The dtype, or None if `value` is not one. (NumPy would accept None as float64.)"""
    try:
        kind: np.dtype[Any] = np.dtype(value)
    except Exception:  # NumPy's parser raises exceptions of Python's parser
        return None
    return None if value is None else kind


def compression(value: Any, operation: str) -> str:
    """The name of a compression; the engine checks which ones exist."""
    if not isinstance(value, str):
        raise InvalidArgument(f"compression is {value!r}; give 'gzip', 'zlib' or 'none'", operation)
    return text(value, operation)


def several(name: str, values: Any, of: str, operation: str) -> list[Any]:
    """The items of a list or another iterable. A string is an error, not a list."""
    try:
        given = None if isinstance(values, (str, bytes)) else iter(values)
    except TypeError:
        given = None
    if given is None:
        raise InvalidArgument(f"{name} is {values!r}; give a list of {of}", operation)
    return list(given)


def addresses(name: str, values: Any, operation: str) -> list[str]:
    """One address, or several."""
    if isinstance(values, str):
        return [string(name, values, operation)]
    given = several(name, values, "addresses", operation)
    return [string(f"{name}[{i}]", address, operation) for i, address in enumerate(given)]


def integer_list(name: str, values: Any, least: int, operation: str) -> list[int]:
    given = several(name, values, "integers", operation)
    return [integer(name, value, least, operation=operation) for value in given]


def one_of(name: str, value: Any, choices: tuple[str, ...], operation: str) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name} is {value!r}; there are {', '.join(choices)}", operation)


def shard_of(shard: Any, operation: str) -> tuple[int, int]:
    """Return rank and world of (rank, world), or of this process if it is "auto"."""
    if isinstance(shard, str) and shard == "auto":
        shard = rank_and_world(operation)
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise InvalidArgument(
            f'shard is {shard!r}; give (rank, world) or "auto"', operation
        ) from None
    rank = integer("rank", rank, 0, operation=operation)
    world = integer("world", world, 1, (1 << 32) - 1, operation=operation)
    if rank >= world:
        raise InvalidArgument(f"shard is ({rank}, {world}); ranks count from 0", operation)
    return rank, world
