"""Requests to servers of files, through fsspec: in time, tried again, with errors that say why."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import Error, InvalidArgument, NotFound, System
from .remote_settings import current_settings

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_AGAIN = (408, 425, 429)  # answers of a server to try again after, beside 500 and above
_URL = re.compile(r"[A-Za-z0-9+.:-]{2,}://")

Identity: TypeAlias = tuple[int, int]


def is_url(name: str) -> bool:
    """Whether it is a URL; the engine's `is_url` is the same."""
    return _URL.match(name) is not None


def without_query(url: str) -> str:
    """A URL as far as it names a file: without its parameters, which may be secret."""
    return url.partition("?")[0] if is_url(url) else url


@dataclass(frozen=True)
class About:
    """A version of a file, as its server describes it."""

    size: int | None  # None: the server does not say
    version: str
    ranges: bool = True  # the server sends parts of the file

    def identity(self, url: str) -> Identity:
        digest = hashlib.sha256(f"{url}\n{self.version}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little") | 1


class Later(Exception):
    """The server may answer another time."""


def opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and its name of the file."""
    try:
        import fsspec.core
    except ImportError:
        raise InvalidArgument(
            f"{url} is a URL, which needs fsspec: pip install penstock[remote]", "open"
        ) from None
    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False)  # type: ignore[no-any-return]
    except ImportError as error:
        raise InvalidArgument(f"{url}: {error}", "open") from None
    except ValueError as error:  # an unknown protocol
        raise InvalidArgument(f"{url}: {error}", "open") from None


def in_time(fs: Any, method: str, *arguments: Any, timeout: float, **options: Any) -> Any:
    """A method of a file system that ends in time; TimeoutError if not."""
    if getattr(fs, "async_impl", False):
        from fsspec.asyn import FSTimeoutError, sync

        try:
            return sync(fs.loop, getattr(fs, f"_{method}"), *arguments, timeout=timeout, **options)
        except FSTimeoutError:
            raise TimeoutError from None
    box: list[tuple[Any, BaseException | None]] = []
    done = threading.Event()

    def run() -> None:
        try:
            box.append((getattr(fs, method)(*arguments, **options), None))
        except BaseException as error:
            box.append((None, error))
        done.set()

    threading.Thread(target=run, name="penstock request", daemon=True).start()
    if not done.wait(timeout):
        raise TimeoutError
    value, error = box[0]
    if error is not None:
        raise error
    return value


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error, if there is one."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(seen, "status", None)
        if isinstance(status, int):
            return status
        seen = seen.__cause__
    return None


def _judged(error: Exception, url: str, place: str) -> Error | None:
    """The error for the user, if another attempt is in vain; None: it may not be."""
    status = _status(error)
    if status in (404, 410):
        return NotFound(f"no such file: {url}", "open")
    if status in (401, 403) or isinstance(error, PermissionError):
        why = f"the server answers {status}" if status else str(error)
        return System(
            f"{url}{place}: {why}: access is denied; give fsspec credentials by its "
            "configuration or environment",
            "open",
        )
    if status is not None and status < 500 and status not in (*_AGAIN, 416):
        return System(f"{url}{place}: the server answers {status}", "read")
    # fsspec's HTTP says so of a server that cannot be reached, too.
    cause = error.__cause__
    unreachable = isinstance(cause, (OSError, TimeoutError, asyncio.TimeoutError))
    unreachable = unreachable or type(cause).__module__.startswith("aiohttp.")
    if isinstance(error, FileNotFoundError) and not unreachable:
        return NotFound(f"no such file: {url}", "open")
    if isinstance(error, (ImportError, NotImplementedError)):
        return InvalidArgument(f"{url}: {error}", "open")
    return None


def persistently(url: str, place: str, call: Callable[[float], Any]) -> Any:
    """The result of `call(timeout)`, tried again after errors that may pass."""
    now = current_settings()
    pause, why = _FIRST_PAUSE_S, ""
    for attempt in range(now.attempts):
        if attempt > 0:
            time.sleep(pause * random.uniform(0.75, 1.25))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        try:
            return call(now.timeout)
        except TimeoutError:
            why = f"no answer within {now.timeout:g} s"
        except Error:
            raise
        except Exception as error:
            judged = _judged(error, url, place)
            if judged is not None:
                raise judged from None
            cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
            kind = type(cause).__name__
            why = str(cause) if isinstance(cause, Later) else f"{kind}: {cause}".removesuffix(": ")
    raise System(
        f"{url}{place}: {now.attempts} attempts failed, the last one: {why}. Is the server "
        "reachable? penstock.remote_files(timeout=, attempts=) gives it more time",
        "read",
    )
