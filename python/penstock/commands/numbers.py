"""Parses and checks numbers of a command line."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return number


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds above 0")
    return number


def counts(text: str) -> list[int]:
    return sorted({positive(part) for part in text.split(",")})
