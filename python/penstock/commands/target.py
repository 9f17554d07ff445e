"""Loads what ``module:object`` names, with errors that name the failed step."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from . import Failed

if TYPE_CHECKING:
    from ..train import Online


def load_dataset(target: str) -> Any:
    """Return the dataset that ``module:object`` names.

    The module may be in the current folder. The object may be dotted; a class, or a function that
    is not a generator function, is called without arguments.

    Raises
    ------
    Failed
    """
    found = _instance(_object(target, "train:dataset"), target, "a dataset")
    if hasattr(found, "__next__"):
        raise Failed(
            f"{target} is a generator, which can be consumed once; name the generator function", 2
        )
    return found


def load_online(target: str) -> Online:
    """Return the `train.Online` that ``module:object`` names, as `load_dataset` finds it.

    Raises
    ------
    Failed
    """
    from ..train import Online

    found = _instance(_object(target, "live:online"), target, "a train.Online")
    if not isinstance(found, Online):
        kind = type(found).__qualname__
        raise Failed(
            f"{target} is of type {kind}, and not a train.Online; name one, or a function that "
            "returns one",
            2,
        )
    return found


def _object(target: str, example: str) -> Any:
    module_name, colon, path = target.partition(":")
    if not (colon and module_name and path):
        raise Failed(f"{target!r} is no module:object, like {example}", 2)
    found = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Failed(f"{module_name} has no {path!r}{_like(found, name)}", 2) from None
    return found


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise Failed(
                f"there is no module {missing!r}: not in {here}, nor among the installed packages",
                2,
            ) from None
        raise Failed(f"importing {name!r} failed: {last_line(error)}") from None
    except Exception as error:
        raise Failed(f"importing {name!r} failed: {last_line(error)}") from None


def last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _like(owner: Any, name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, dir(owner), 3)
    return f"; it has {', '.join(close)}" if close else ""


def _instance(found: Any, target: str, what: str) -> Any:
    from ..streams import is_stream_function

    if inspect.isclass(found) or (inspect.isfunction(found) and not is_stream_function(found)):
        try:
            return found()
        except Exception as error:
            raise Failed(
                f"{target} must be {what}, or return one when called without arguments: "
                f"{last_line(error)}",
                2,
            ) from None
    return found
