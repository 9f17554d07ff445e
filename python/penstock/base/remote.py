"""Files that are named by URLs: copies in a cache on the local disk, fetched through fsspec.

The engine reads a file of a URL from its local copy. So every format, order and kind of worker is
as with local files, and a second epoch fetches nothing. The engine asks for a copy when the file is
first read, and announces the files that come next; threads fetch them, each in several ranges at a
time. A copy is one file, named by its URL and its version (ETag, time, size, as the server says).
It appears under its name when it is complete. Processes that want the same copy wait for the one
that fetches it, by a lock on the incomplete file. Copies that were not used for the longest time
are removed first; open ones are not, because their readers lock them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import hashlib
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from .. import _engine
from ..errors import DataLoss, Error, InvalidArgument, NotFound, System
from .arguments import integer, real
from .arguments import path as path_of
from .fork_lock import ForkLock

__all__ = ["is_url", "local_copy", "local_path", "remote_files", "settings", "use", "without_query"]

_RANGE = 4 << 20  # bytes of one request
_THREADS = 16  # that wait for servers; as many again for whole files
_IDLE_S = 1.0  # after which a thread ends
_REMEMBERED_S = 60.0  # a file that could not be fetched fails at once for so long
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_PART = ".part"
# What tells versions of a file apart, by the names that file systems give it.
_VERSION = {
    *("etag", "contentmd5", "digest", "md5", "md5hash", "crc32c", "generation", "versionid"),
    *("lastmodified", "mtime", "modified", "updated", "created", "size"),
}
_AGAIN = (408, 425, 429)  # answers of a server to try again after, beside 500 and above

Identity: TypeAlias = tuple[int, int]

_URL = re.compile(r"[A-Za-z0-9+.:-]{2,}://")


@dataclass(frozen=True)
class Settings:
    """How files of URLs are fetched and kept."""

    cache_dir: str | None = None
    cache_bytes: int | None = None
    timeout: float = 60.0
    attempts: int = 5

    def folder(self) -> str:
        given = self.cache_dir or os.environ.get("PENSTOCK_CACHE_DIR")
        if given:
            return given
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(home, "penstock")

    def limit(self, used: int) -> int:
        """Bytes that the cache may have, if it has `used` now."""
        if self.cache_bytes is not None:
            return self.cache_bytes
        given = os.environ.get("PENSTOCK_CACHE_BYTES")
        if given:
            try:
                return max(0, int(given))
            except ValueError:
                raise InvalidArgument(
                    f"the environment has PENSTOCK_CACHE_BYTES={given!r}; give an integer",
                    "remote_files",
                ) from None
        disk = os.statvfs(self.folder())
        return (disk.f_bavail * disk.f_frsize + used) // 2


_settings = Settings()


def remote_files(
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    timeout: float = 60.0,
    attempts: int = 5,
) -> None:
    """Set how this process, and its worker processes, fetch the files of URLs.

    Worker processes that start later have the same settings.

    Parameters
    ----------
    cache_dir : path, optional
        The folder of the local copies. None: the environment variable ``PENSTOCK_CACHE_DIR``, or
        ``penstock`` in the user's cache folder (``~/.cache``).
    cache_bytes : int, optional
        The most bytes of copies in it. Beyond, the least recently used ones are removed, but none
        that is open: one large file may exceed it. None: the environment variable
        ``PENSTOCK_CACHE_BYTES``, or half of the disk's free space.
    timeout : float
        Seconds in which a server has to answer a request. One request is for 4 MiB at most.
    attempts : int
        How often a request is made before it is an error. The pauses between them double, from
        0.2 to 10 seconds.

    Raises
    ------
    InvalidArgument
        A value is out of range.
    """
    operation = "remote_files"
    seconds = real("timeout", timeout, operation)
    if not 0 < seconds < 1e6:
        raise InvalidArgument(f"timeout is {timeout!r}; give seconds, more than 0", operation)
    use(
        Settings(
            None if cache_dir is None else os.path.abspath(path_of(cache_dir, operation)),
            None
            if cache_bytes is None
            else integer("cache_bytes", cache_bytes, 0, operation=operation),
            seconds,
            integer("attempts", attempts, 1, 1000, operation=operation),
        )
    )


def settings() -> Settings | None:
    """The settings, for worker processes; None: nothing was set."""
    return None if _settings == Settings() else _settings


def use(given: Settings | None) -> None:
    """Take the settings of another process."""
    global _settings
    if given is not None:
        _settings = given


def is_url(name: str) -> bool:
    """Whether it is a URL; the engine's `is_url` is the same."""
    return _URL.match(name) is not None


def without_query(url: str) -> str:
    """A URL as far as it names a file: without its parameters, which may be secret."""
    return url.partition("?")[0] if is_url(url) else url


def local_copy(url: str, identity: Identity | None = None) -> tuple[str, Identity]:
    """The path and the identity of the local copy of a URL's file, for libraries that open files.

    Parameters
    ----------
    identity : (int, int), optional
        Of the version that is wanted. None: the newest.
    """
    job = ask("path", url, identity)
    while (result := job.poll(1.0)) is None:  # Ctrl-C interrupts it
        pass
    kind, value = result
    if kind:
        raise _KINDS[kind](value, "open")
    return value  # type: ignore[no-any-return]


def local_path(path: str) -> str:
    """A path as it is; of a URL's file the local copy."""
    return local_copy(path)[0] if is_url(path) else path


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind for kind in (DataLoss, InvalidArgument, NotFound, System)
}


# ---- threads -------------------------------------------------------------------------------------


class Job:
    """A call in another thread. Never raises the call's exception."""

    def __init__(self, call: Callable[[], Any], then: Callable[[Any], Any] | None = None) -> None:
        self._call = call
        self._then = then  # with the call's result, in the thread that polls
        self._done = threading.Event()
        self._result: tuple[str, Any] = ("", None)

    def run(self) -> None:
        try:
            self._result = ("", self._call())
        except Error as error:
            kind = type(error).__name__
            self._result = (kind if kind in _KINDS else "System", str(error))
        except BaseException as error:
            self._result = ("System", f"{type(error).__name__}: {error}")
        self._done.set()

    def poll(self, seconds: float) -> tuple[str, Any] | None:
        """Return the name of the error's class ("": none) and its text or the result.

        None: not after `seconds`.
        """
        if not self._done.wait(seconds):
            return None
        if self._then is None or self._result[0]:
            return self._result
        try:
            return "", self._then(self._result[1])
        except Error as error:
            return type(error).__name__, str(error)

    def value(self) -> Any:
        self._done.wait()
        kind, value = self._result
        if kind:
            raise _KINDS[kind](value, "read")
        return value


class _Threads:
    """Daemon threads that run jobs in order. They do not delay the end of the program."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._started = self._idle = 0

    def submit(self, job: Job) -> Job:
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._started < self._most:
                self._started += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._changed.notify()
        return job

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs, _IDLE_S)
                self._idle -= 1
                if not self._jobs:
                    self._started -= 1
                    return
                job = self._jobs.popleft()
            job.run()
            del job  # its result may be large


# ---- servers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class About:
    """A version of a file, as its server describes it."""

    size: int | None  # None: the server does not say
    version: str
    ranges: bool = True  # the server sends parts of the file

    def identity(self, url: str) -> Identity:
        digest = hashlib.sha256(f"{url}\n{self.version}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little") | 1


class _Later(Exception):
    """The server may answer another time."""


def _opened(url: str) -> tuple[Any, str]:
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


def _call(fs: Any, method: str, *arguments: Any, timeout: float, **options: Any) -> Any:
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


def _persistently(url: str, place: str, call: Callable[[float], Any]) -> Any:
    """The result of `call(timeout)`, tried again after errors that may pass."""
    now = _settings
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
            why = str(cause) if isinstance(cause, _Later) else f"{kind}: {cause}".removesuffix(": ")
    raise System(
        f"{url}{place}: {now.attempts} attempts failed, the last one: {why}. Is the server "
        "reachable? penstock.remote_files(timeout=, attempts=) gives it more time",
        "read",
    )


# ---- the cache -----------------------------------------------------------------------------------


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


class Remote:
    """The files of URLs in this process. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files = _Threads(_THREADS, "penstock fetch")
        self._requests = _Threads(_THREADS, "penstock range")
        self._known: dict[str, About] = {}
        self._failed: dict[str, tuple[float, Error]] = {}
        self._fetches: dict[str, Job] = {}  # by the path of the copy
        self._ranges: dict[str, bool] = {}  # whether the server sends parts of a file
        self._urls: dict[str, str] = {}  # by the name of the copy
        self._parts: dict[str, int] = {}  # incomplete files that this process writes
        self._evicting = threading.Lock()
        # Bytes that may be fetched into a folder before it is looked through again.
        self._room, self._room_in = 0, (Settings(), "")

    # -- what the engine asks for, each in a job

    def glob(self, url: str) -> Job:
        """The URLs that a pattern matches, sorted. A plain URL is looked at anew when opened."""
        with self._lock:
            self._known.pop(url, None)
            self._failed.pop(url, None)
        http = url.startswith(("http://", "https://"))
        if not any(c in url for c in ("*[" if http else "*?[")):
            job = Job(lambda: [url])
            job.run()
            return job

        def find() -> list[str]:
            fs, name = _opened(url)
            found = _persistently(url, "", lambda timeout: _call(fs, "glob", name, timeout=timeout))
            urls = sorted(fs.unstrip_protocol(each) for each in found)
            urls = [each for each in urls if not each.endswith(".penstock-index")]
            with self._lock:
                for each in urls:
                    self._known.pop(each, None)
                    self._failed.pop(each, None)
            if not urls:
                raise NotFound(f"no file matches {url}", "glob")
            return urls

        return self._files.submit(Job(find))

    def listed(self, folder: str) -> Job:
        """The names in a folder, and whether they are folders; empty: it cannot be listed."""

        def call() -> list[tuple[str, bool]]:
            fs, name = _opened(folder)
            begin = name.rstrip("/") + "/"
            try:
                found = _persistently(
                    folder,
                    "",
                    lambda timeout: _call(fs, "ls", name, timeout=timeout, detail=True),
                )
            except (NotFound, InvalidArgument):
                return []
            names = {
                each["name"].rstrip("/").removeprefix(begin): each["type"] == "directory"
                or each["name"].endswith("/")
                for each in found
                if each["name"].startswith(begin)
            }
            return [(each, is_folder) for each, is_folder in names.items() if "/" not in each]

        return self._files.submit(Job(call))

    def find(self, url: str) -> Job:
        """The size and the identity of a file."""

        def call() -> tuple[int, int, int]:
            about = self._about(url)
            size = about.size
            if size is None:
                size = os.path.getsize(self._fetched(url, about))
            return (size, *about.identity(url))

        return self._files.submit(Job(call))

    def front(self, url: str, size: int, identity: Identity) -> Job:
        """The first bytes of a file, at most `size`; None: its copy has them."""

        def call() -> bytes | None:
            about = self._about(url)
            if about.identity(url) != identity or not about.ranges:
                return None
            if (about.size or 0) <= _RANGE or os.path.exists(self._path(url, about)):
                return None
            return self._range(url, 0, size)

        return self._files.submit(Job(call))

    def fetch(self, url: str, identity: Identity) -> Job:
        """The descriptor of a version's copy, which the caller closes; None: ask again."""
        return self._files.submit(Job(lambda: self._copy(url, identity), self._open))

    def path(self, url: str, identity: Identity | None) -> Job:
        """The path and the identity of the copy of a version; None: of the newest."""

        def call() -> tuple[str, Identity]:
            if identity is not None:
                return self._copy(url, identity), identity
            with self._lock:
                self._known.pop(url, None)
            about = self._about(url)
            return self._fetched(url, about), about.identity(url)

        return self._files.submit(Job(call))

    def announce(self, urls: list[str]) -> None:
        """Fetch files that will be wanted soon. Errors are those of the later calls."""
        for url in urls:
            self._files.submit(Job(partial(self._wanted, url)))

    # -- the steps

    def _wanted(self, url: str) -> str:
        return self._fetched(url, self._about(url))

    def _copy(self, url: str, identity: Identity) -> str:
        """The path of the copy of a version, fetched if it is not there."""
        path = os.path.join(_settings.folder(), self._named(url, identity))
        if os.path.exists(path):
            return path
        about = self._about(url)
        if about.identity(url) != identity:
            raise DataLoss(
                f"{url}: the server has another version of it since the Dataset was built, and "
                "the cache has none of the old one. Build the dataset again",
                "open",
            )
        return self._fetched(url, about)

    def _about(self, url: str) -> About:
        with self._lock:
            about, failed = self._known.get(url), self._failed.get(url)
        if failed is not None and time.monotonic() - failed[0] < _REMEMBERED_S:
            raise failed[1]
        if about is not None:
            return about
        with self._noted(url):
            about = self._looked_up(url)
        with self._lock:
            return self._known.setdefault(url, about)

    def _looked_up(self, url: str) -> About:
        fs, name = _opened(url)
        info = _persistently(url, "", lambda timeout: _call(fs, "info", name, timeout=timeout))
        if info.get("type") == "directory":
            raise InvalidArgument(f"{url} is a folder, not a file", "open")
        known = {key.lower().replace("-", "").replace("_", ""): key for key in info}
        said = {key: str(info[known[key]]) for key in sorted(_VERSION & known.keys())}
        size = info.get("size")
        ranges = info.get("partial", True) and size is not None
        if ranges and size > _RANGE:
            ranges = self._serves_ranges(fs, url)
        return About(size, repr(said), ranges)

    def _serves_ranges(self, fs: Any, url: str) -> bool:
        """Whether the server sends a part of a file: HTTP servers may send all of it instead."""
        if not hasattr(fs, "set_session") or not hasattr(fs, "encode_url"):
            return True
        with self._lock:
            if url in self._ranges:
                return self._ranges[url]

        async def ask_for_a_byte() -> bool:
            session = await fs.set_session()
            options = {**fs.kwargs, "headers": {**fs.kwargs.get("headers", {})}}
            options["headers"]["Range"] = "bytes=0-0"
            async with session.get(fs.encode_url(url), **options) as answer:
                answer.raise_for_status()
                return bool(answer.status == 206)

        def call(timeout: float) -> bool:
            asked = asyncio.run_coroutine_threadsafe(
                asyncio.wait_for(ask_for_a_byte(), timeout), fs.loop
            )
            try:
                return asked.result()
            except asyncio.TimeoutError:
                raise TimeoutError from None

        served = bool(_persistently(url, "", call))
        with self._lock:
            self._ranges[url] = served
        return served

    @contextlib.contextmanager
    def _noted(self, url: str) -> Iterator[None]:
        """Remember an error, so that not every record of a file waits for the same one."""
        try:
            yield
        except Error as error:
            with self._lock:
                self._failed[url] = (time.monotonic(), error)
            raise

    def _named(self, url: str, identity: Identity) -> str:
        file = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name = f"{file}-{identity[0]:016x}{identity[1]:016x}"
        self._urls[name] = url
        return name

    def _path(self, url: str, about: About) -> str:
        return os.path.join(_settings.folder(), self._named(url, about.identity(url)))

    def _open(self, path: str) -> int | None:
        """Open a copy and lock it for as long as it is open. None: it was removed."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise System(f"{path}: {error.strerror}", "open", error.errno) from None
        _locked(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink == 0:
            os.close(fd)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the order in which copies are removed
        return fd

    def _fetched(self, url: str, about: About) -> str:
        """The path of a version's copy, fetched if it is not there."""
        path = self._path(url, about)
        if os.path.exists(path):
            return path
        with self._lock:
            job = self._fetches.get(path)
            first = job is None
            if job is None:
                job = self._fetches[path] = Job(lambda: self._fetch(url, about, path))
        if first:
            try:
                with self._noted(url):
                    job.run()
                    return str(job.value())
            finally:
                with self._lock:
                    self._fetches.pop(path, None)
        return str(job.value())

    def _fetch(self, url: str, about: About, path: str) -> str:
        folder = os.path.dirname(path)
        try:
            os.makedirs(folder, exist_ok=True)
            with self._part(path) as fd:
                if fd is None:  # another process was faster
                    return path
                self._make_room(folder, about.size or 0)
                self._fill(url, about, path, fd)
                os.rename(path + _PART, path)
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise System(
                f"{url}: its copy in {folder} cannot be written: {error.strerror}. "
                "penstock.remote_files(cache_dir=) takes another folder, cache_bytes= less space",
                "read",
                error.errno,
            ) from None
        return path

    @contextlib.contextmanager
    def _part(self, path: str) -> Iterator[int | None]:
        """The incomplete file, locked; None: another process completed it meanwhile."""
        part = path + _PART
        while True:
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while not _locked(fd, fcntl.LOCK_EX):
                time.sleep(0.05)
            try:
                same = os.stat(part).st_ino == os.fstat(fd).st_ino
            except FileNotFoundError:
                same = False
            complete = os.path.exists(path)
            if same and not complete:
                break
            if same:
                os.unlink(part)
            os.close(fd)
            if complete:
                yield None
                return
        self._parts[part] = fd
        try:
            os.truncate(fd, 0)
            yield fd
        finally:
            self._parts.pop(part, None)
            if not os.path.exists(path):
                with contextlib.suppress(OSError):
                    os.unlink(part)
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the descriptor, too
            os.close(fd)

    def _fill(self, url: str, about: About, path: str, fd: int) -> None:
        size = about.size
        if size is None or not about.ranges:
            self._whole(url, about, path + _PART)
            return
        os.truncate(fd, size)
        stop = threading.Event()

        def piece(begin: int) -> None:
            if stop.is_set():
                return
            try:
                data = self._range(url, begin, min(_RANGE, size - begin))
                at = 0
                while at < len(data):
                    at += os.pwrite(fd, memoryview(data)[at:], begin + at)
            except BaseException:
                stop.set()
                raise

        pieces = [
            self._requests.submit(Job(partial(piece, begin))) for begin in range(0, size, _RANGE)
        ]
        errors = []
        for job in pieces:  # all of them, because they write to the file
            try:
                job.value()
            except Error as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if len(pieces) > 1 and self._looked_up(url).version != about.version:
            with self._lock:
                self._known.pop(url, None)
            raise DataLoss(
                f"{url}: the server got another version of it while it was fetched: try again",
                "read",
            )

    def _range(self, url: str, begin: int, size: int) -> bytes:
        fs, name = _opened(url)
        place = f", bytes {begin} to {begin + size - 1}"

        def call(timeout: float) -> bytes:
            data = _call(fs, "cat_file", name, timeout=timeout, start=begin, end=begin + size)
            if len(data) != size:
                raise _Later(f"{len(data)} bytes came instead of {size}")
            return bytes(data)

        return bytes(_persistently(url, place, call))

    def _whole(self, url: str, about: About, part: str) -> None:
        """Fetch a file in one request, because its server sends no parts of it."""
        from fsspec.callbacks import Callback

        fs, name = _opened(url)

        def call(timeout: float) -> None:
            callback = Callback()
            done = threading.Event()
            errors: list[BaseException] = []

            def run() -> None:
                try:
                    fs.get_file(name, part, callback=callback)
                except BaseException as error:
                    errors.append(error)
                done.set()

            if getattr(fs, "async_impl", False):
                future = asyncio.run_coroutine_threadsafe(
                    fs._get_file(name, part, callback=callback), fs.loop
                )
                future.add_done_callback(lambda _: done.set())
            else:
                future = None
                threading.Thread(target=run, name="penstock request", daemon=True).start()
            reached = -1
            while not done.wait(timeout):
                if callback.value == reached:
                    if future is not None:
                        future.cancel()
                    raise TimeoutError
                reached = callback.value
            if future is not None:
                future.result()
            elif errors:
                raise errors[0]
            size = os.path.getsize(part)
            if about.size is not None and size != about.size:
                raise _Later(f"{size} bytes came instead of {about.size}")

        _persistently(url, "", call)

    # -- room

    def _make_room(self, folder: str, size: int) -> None:
        """Remove the least recently used copies if the cache would become too large."""
        with self._evicting:
            if self._room_in != (_settings, folder):
                self._room, self._room_in = 0, (_settings, folder)
            self._room -= size
            if self._room >= 0:
                return
            copies = []
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    copies.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.name))
            used = sum(copy[1] for copy in copies)
            limit = _settings.limit(used)
            if used + size > limit:
                for _, bytes_, name in sorted(copies):
                    if used + size <= limit - limit // 10:  # a tenth, not to do this each time
                        break
                    if self._removed(folder, name):
                        used -= bytes_
            self._room = max(0, limit - used - size) // 4  # other processes fill it, too

    def _removed(self, folder: str, name: str) -> bool:
        path = os.path.join(folder, name)
        if path in self._parts or not _is_ours(name):
            return False
        url = self._urls.get(name.removesuffix(_PART))
        if url is not None:
            _engine.close_unused_files(url)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if not _locked(fd, fcntl.LOCK_EX):
                return False
            os.unlink(path)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    # -- ends

    def forget(self) -> None:
        """In a forked child, which has neither the threads nor the files that they write."""
        for fd in list(self._parts.values()):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._parts.clear()

    def end(self) -> None:
        """At the end of the program: remove incomplete files."""
        for part in list(self._parts):
            with contextlib.suppress(OSError):
                os.unlink(part)


def _is_ours(name: str) -> bool:
    stem = name.removesuffix(_PART)
    return len(stem) == 65 and stem[32] == "-" and set(stem) <= set("0123456789abcdef-")


_lock = ForkLock()
_remote: tuple[int, Remote] | None = None  # with the process that it belongs to


def _of_process() -> Remote:
    global _remote
    with _lock.here():
        if _remote is None or _remote[0] != os.getpid():
            if _remote is None:
                atexit.register(_end)
                os.register_at_fork(after_in_child=_forget)
            _remote = (os.getpid(), Remote())
        return _remote[1]


def _forget() -> None:
    if _remote is not None:
        _remote[1].forget()


def _end() -> None:
    if _remote is not None and _remote[0] == os.getpid():
        _remote[1].end()


def ask(what: str, *arguments: Any) -> Any:
    """Begin a call of the engine; see the methods of `Remote`."""
    return getattr(_of_process(), what)(*arguments)
