"""``penstock verify FILES``: verifies checksums and headers, and decodes what has none."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..base.file_kinds import is_parquet, is_snapshot, is_tar
from . import bytes_text
from .files import Survey, counted, find, is_rows, looks_like, surveys


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="verify files of records, tables, arrays and images",
        description="Verifies every checksum of TFRecord files; of tar archives every header "
        "(their data has no checksums); decodes every row group of Parquet files, with the "
        "checksums that its pages have; verifies every checksum of the files of Dataset.cache; "
        "reads every row of npy, npz, IDX and HDF5 files, and decodes every image in a folder of "
        "images. Names each damaged place. Exit code 1: there "
        "is one.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a path, or a pattern in quotes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    paths = find(options.files)
    with _losses_not_logged():  # they are listed here
        return _verify(paths, options)


@contextlib.contextmanager
def _losses_not_logged() -> Iterator[None]:
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _verify(paths: list[str], options: argparse.Namespace) -> int:
    total = Survey("")
    damaged = 0
    each = []
    for found in surveys(paths):
        total.add(found)
        damaged += found.lost_places > 0
        each.append(found)
        if not options.json:
            print_damage(found)
    what = "sample" if all(map(is_tar, paths)) else "record"
    if all(map(is_parquet, paths)):
        what = "row"
    snapshots = all(map(is_snapshot, paths))  # each element has a checksum
    reads = all(map(is_rows, paths)) and not snapshots
    if reads or snapshots:
        what = "row" if reads else "element"
    if options.json:
        print(json.dumps({"ok": not damaged, "files": [_plain(found) for found in each]}, indent=1))
    elif damaged:
        print(
            f"\n{counted(total.lost_places, 'damaged place')} in {damaged} of "
            f"{counted(len(paths), 'file')}, {total.lost_bytes:,} bytes lost; "
            f"{counted(total.records, what)} sound."
        )
    else:
        sound = "every row group decodes" if what == "row" else "every checksum agrees"
        sound = "every row is read" if reads else sound
        print(
            f"{counted(len(paths), 'file')}, {counted(total.records, what)}, "
            f"{bytes_text(total.file_bytes)}: "
            f"{sound}."
        )
    return 1 if damaged else 0


def print_damage(found: Survey) -> None:
    """Print a line for each damaged place of a file."""
    for place in found.damage:
        at = "" if is_rows(found.path) else f" at byte {place.byte}: {place.bytes} bytes lost"
        print(f"{found.path}: record {place.record}{at}: {place.why}", flush=True)
    if found.lost_places > len(found.damage):
        print(f"{found.path}: and {found.lost_places - len(found.damage):,} more")
    hint = looks_like(found)
    if hint:
        print(f"{found.path}: {hint}")


def _plain(found: Survey) -> dict[str, Any]:
    names = ("path", "file_bytes", "records", "lost_places", "lost_bytes")
    return {
        **{name: getattr(found, name) for name in names},
        "damage": [asdict(place) for place in found.damage],
    }
