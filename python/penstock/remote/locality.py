"""``locality=`` of remote workers: the files of each sample, and the hosts that have them.

A ticket is claimed by a place of the engine's ring, as any ticket. Then it is decided which host
runs it: one that has the files of all its samples, and of these hosts the one with the most free
connections. The place waits until such a connection is free. A host says which files it has when it
is asked for them first, and again after it was connected anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..errors import InvalidArgument

_SHOWN = 3


class Locality:
    """The files of each sample.

    Parameters
    ----------
    files : callable or container
        ``files(index)`` or ``files[index]`` is the path, or an iterable of paths, of a sample.
    operation : str
        For errors.

    Raises
    ------
    InvalidArgument
        `files` is neither.
    """

    def __init__(self, files: Any, operation: str) -> None:
        if not callable(files) and (
            isinstance(files, (str, bytes)) or not hasattr(files, "__getitem__")
        ):
            raise InvalidArgument(
                f"locality is {files!r}; give a function from an index to the path of the sample's "
                "file, or a list with the path of each sample's file",
                operation,
            )
        self.files = files
        self._of = files if callable(files) else files.__getitem__

    def paths_of(self, indices: list[int]) -> list[str]:
        """Return the paths of some samples, each once.

        Raises
        ------
        InvalidArgument
            What the user's function returned is no path.
        """
        paths: dict[str, None] = {}
        for index in indices:
            found = self._of(index)
            several = not isinstance(found, (str, os.PathLike)) and isinstance(found, Iterable)
            for path in found if several else [found]:
                if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
                    raise InvalidArgument(
                        f"locality of sample {index!r} is {found!r}; give a path, or several",
                        "Loader",
                    )
                paths[os.fspath(path)] = None
        return list(paths)


class KnownFiles:
    """The files that a host has, as far as it was asked."""

    def __init__(self) -> None:
        self._known: dict[str, bool | None] = {}  # None: it has not answered yet

    def unasked(self, paths: list[str]) -> list[str]:
        """Return the paths that the host has to be asked for, and take them as asked."""
        new = [path for path in paths if path not in self._known]
        self._known.update(dict.fromkeys(new))
        return new

    def answered(self, paths: list[str], there: list[bool]) -> None:
        self._known.update(zip(paths, map(bool, there), strict=True))

    def has(self, paths: list[str]) -> bool | None:
        """Whether the host has all these files; None: it has not answered yet."""
        answers = [self._known.get(path) for path in paths]
        if False in answers:
            return False
        return None if None in answers else True


def no_host_has(paths: list[str], hosts: dict[str, KnownFiles]) -> str:
    """Say why no host can run a ticket. `hosts`: by title, all have answered."""
    missing = [p for p in paths if not any(known.has([p]) for known in hosts.values())]
    names = ", ".join(hosts)
    if missing:
        listed = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        return f"no host has the file {listed} (asked: {names})"
    return (
        f"no host has all {len(paths)} files of one batch, such as {paths[0]} and {paths[-1]} "
        f"(asked: {names}): leave batch_size out, and let __getitem__ return a whole batch of "
        "one host's files"
    )
