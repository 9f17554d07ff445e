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
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from .. import _engine
from ..errors import DataLoss, Error, InvalidArgument, NotFound, System
from .fork_lock import ForkLock
from .jobs import KINDS, Job, Threads
from .remote_settings import Settings, current_settings
from .servers import About, Identity, Later, in_time, is_url, opened, persistently, without_query

__all__ = ["Identity", "ask", "is_url", "local_copy", "local_path", "without_query"]

_RANGE = 4 << 20  # bytes of one request
_THREADS = 16  # that wait for servers; as many again for whole files
_REMEMBERED_S = 60.0  # a file that could not be fetched fails at once for so long
_PART = ".part"
# Properties that differ between versions of a file, by the names of the file systems.
_VERSION = {
    *("etag", "contentmd5", "digest", "md5", "md5hash", "crc32c", "generation", "versionid"),
    *("lastmodified", "mtime", "modified", "updated", "created", "size"),
}


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
        raise KINDS[kind](value, "open")
    return value  # type: ignore[no-any-return]


def local_path(path: str) -> str:
    """A path as it is; of a URL's file the local copy."""
    return local_copy(path)[0] if is_url(path) else path


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
        self._files = Threads(_THREADS, "penstock fetch")
        self._requests = Threads(_THREADS, "penstock range")
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
            fs, name = opened(url)
            found = persistently(
                url, "", lambda timeout: in_time(fs, "glob", name, timeout=timeout)
            )
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
            fs, name = opened(folder)
            begin = name.rstrip("/") + "/"
            try:
                found = persistently(
                    folder,
                    "",
                    lambda timeout: in_time(fs, "ls", name, timeout=timeout, detail=True),
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
        path = os.path.join(current_settings().folder(), self._named(url, identity))
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
        fs, name = opened(url)
        info = persistently(url, "", lambda timeout: in_time(fs, "info", name, timeout=timeout))
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

        served = bool(persistently(url, "", call))
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
        return os.path.join(current_settings().folder(), self._named(url, about.identity(url)))

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
        fs, name = opened(url)
        place = f", bytes {begin} to {begin + size - 1}"

        def call(timeout: float) -> bytes:
            data = in_time(fs, "cat_file", name, timeout=timeout, start=begin, end=begin + size)
            if len(data) != size:
                raise Later(f"{len(data)} bytes came instead of {size}")
            return bytes(data)

        return bytes(persistently(url, place, call))

    def _whole(self, url: str, about: About, part: str) -> None:
        """Fetch a file in one request, because its server sends no parts of it."""
        from fsspec.callbacks import Callback

        fs, name = opened(url)

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
                raise Later(f"{size} bytes came instead of {about.size}")

        persistently(url, "", call)

    # -- space

    def _make_room(self, folder: str, size: int) -> None:
        """Remove the least recently used copies if the cache would become too large."""
        with self._evicting:
            if self._room_in != (current_settings(), folder):
                self._room, self._room_in = 0, (current_settings(), folder)
            self._room -= size
            if self._room >= 0:
                return
            copies = []
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    copies.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.name))
            used = sum(copy[1] for copy in copies)
            limit = current_settings().limit(used)
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
