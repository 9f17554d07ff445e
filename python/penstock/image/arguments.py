"""Arguments that several operations have: their types and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..base.arguments import integer, one_of, real, several, string
from ..errors import InvalidArgument
from ..operations import _names

Fields: TypeAlias = "str | Sequence[str]"
Others: TypeAlias = "str | Sequence[str] | None"

MOST_SIDE = 65535
PLACES = ("workers", "device")


def moved_of(
    fields: Any, masks: Any, boxes: Any, keypoints: Any, mask_fill: Any, operation: str
) -> tuple[list[str], list[str], list[str], list[str], int]:
    """What an operation moves."""
    return (
        _names(fields, operation),
        _names(masks, operation),
        _names(boxes, operation),
        _names(keypoints, operation),
        integer("mask_fill", mask_fill, 0, 255, operation=operation),
    )


def runs_on_device(on: str, moved: tuple[Any, ...], operation: str) -> bool:
    one_of("on", on, PLACES, operation)
    if on == "device" and any(moved[1:]):
        raise InvalidArgument(
            'masks, boxes and keypoints are moved by workers only: use on="workers"', operation
        )
    return on == "device"


def size_of(height: Any, width: Any, operation: str) -> tuple[int, int]:
    return (
        integer("height", height, 1, MOST_SIDE, operation=operation),
        integer("width", width, 1, MOST_SIDE, operation=operation),
    )


def pair_of(name: str, value: Any, operation: str) -> list[float]:
    pair = [real(name, each, operation) for each in several(name, value, "two numbers", operation)]
    if len(pair) != 2:
        raise InvalidArgument(f"{name} is {value!r}; give the least and the greatest", operation)
    return pair


def numbers_of(name: str, values: Any, operation: str, lengths: Sequence[int]) -> list[float]:
    given = [real(name, each, operation) for each in several(name, values, "numbers", operation)]
    if len(given) in lengths:
        return given
    raise InvalidArgument(
        f"{name} is {values!r}; give {' or '.join(str(length) for length in lengths)} numbers",
        operation,
    )


def range_of(name: str, value: Any, operation: str, lengths: Sequence[int] = (1, 2)) -> list[float]:
    """One number d is (-d, d)."""
    given = numbers_of(name, value if hasattr(value, "__iter__") else [value], operation, lengths)
    if len(given) > 1:
        return given
    if given[0] < 0:
        raise InvalidArgument(
            f"{name} is {value!r}; give 0 or more, or the least and the greatest", operation
        )
    return [-given[0], given[0]]


def factors_of(name: str, value: Any, operation: str) -> list[float]:
    """One number x is (max(0, 1 - x), 1 + x)."""
    least, most = range_of(name, value, operation)
    if hasattr(value, "__iter__"):
        return [least, most]
    return [max(0.0, 1 + least), 1 + most]


def fill_of(value: Any, operation: str) -> tuple[str, float]:
    if isinstance(value, str):
        return string("fill", value, operation), 0.0
    return "constant", real("fill", value, operation)


def is_list(value: Any) -> bool:
    return not hasattr(value, "__index__")
