"""Loads a dataset from ``module:object``, with errors that name the failed step."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import Any

from . import Failed


def load_dataset(target: str) -> Any:
    """Return the dataset that ``module:object`` names.

    The module may be in the current folder. The object may be dotted; a class, or a function that
    is not a generator function, is called without arguments.

    Raises
    ------
    Failed
    """
    module_name, colon, path = target.partition(":")
    if not (colon and module_name and path):
        raise Failed(f"{target!r} is no module:object, like train:dataset", 2)
    found = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Failed(f"{module_name} has no {path!r}{_like(found, name)}", 2) from None
    return _instance(found, target)


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
        raise Failed(f"importing {name!r} failed: {_last_line(error)}") from None
    except Exception as error:
        raise Failed(f"importing {name!r} failed: {_last_line(error)}") from None


def _last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _like(owner: Any, name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, dir(owner), 3)
    return f"; it has {', '.join(close)}" if close else ""


def _instance(found: Any, target: str) -> Any:
    from ..streams import is_stream_function

    if inspect.isclass(found) or (inspect.isfunction(found) and not is_stream_function(found)):
        try:
            found = found()
        except Exception as error:
            raise Failed(
                f"{target} must be a dataset, or give one when called without arguments: "
                f"{_last_line(error)}",
                2,
            ) from None
    if hasattr(found, "__next__"):
        raise Failed(
            f"{target} is a generator, which can be consumed once; name the generator function", 2
        )
    return found
