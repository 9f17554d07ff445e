"""Reads files that contain a secret, and passes the secret on."""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path

from . import Failed

_NEW = "make one: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        type=Path,
        help="what both ends must know, at least 16 bytes; only you may read the file; without it, "
        "only your processes on this host connect",
    )
    parser.add_argument(
        "--encrypt",
        action=argparse.BooleanOptionalAction,
        help="encrypt TCP connections, or never do; without it, those with other hosts are",
    )


def read(path: Path | None) -> str:
    """The secret in a file, without white space around it; empty without a file.

    Raises
    ------
    Failed
        The file does not exist, other users may read it, or it is empty.
    """
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1 << 16)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; {_NEW}", 2) from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Failed(f"{path}: others may read this secret; chmod 600 {path}", 2)
    try:
        secret = text.decode().strip()
    except UnicodeDecodeError:
        raise Failed(f"{path}: a secret is text; {_NEW}", 2) from None
    if not secret:
        raise Failed(f"{path}: there is no secret in it; {_NEW}", 2)
    return secret
