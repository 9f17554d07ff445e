"""How files of URLs are fetched and kept: `penstock.remote_files`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import InvalidArgument
from .arguments import integer, real
from .arguments import path as path_of

__all__ = ["Settings", "current_settings", "remote_files", "settings", "use"]


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


def current_settings() -> Settings:
    """The settings of this process."""
    return _settings


def settings() -> Settings | None:
    """The settings, for worker processes; None: nothing was set."""
    return None if _settings == Settings() else _settings


def use(given: Settings | None) -> None:
    """Take the settings of another process."""
    global _settings
    if given is not None:
        _settings = given
