"""Passes over files for the commands: several at a time, with a progress bar on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from .. import _engine
from ..base.file_kinds import cifar_classes, is_hdf5_file, is_idx, is_parquet, is_snapshot, is_tar
from ..base.remote import is_url, without_query
from ..errors import Error, NotFound
from . import Failed, size_of

_REDRAWN_S = 0.1
_INDEX = ".penstock-index"  # suffix of the files of `Dataset.tfrecord(index="beside")`


@dataclass
class Damage:
    """A place in a file without a sound record."""

    record: int  # its number in the file
    byte: int
    bytes: int  # number of lost bytes
    why: str


@dataclass
class Feature:
    """A feature of the tf.Examples of one or more files."""

    records: int = 0  # number of records that have it
    types: tuple[int, ...] = (0, 0, 0, 0)  # records by type: none, bytes, float32, int64
    values: tuple[int, int] = (0, 0)  # in one record, least and most
    bytes: tuple[int, int] = (0, 0)  # of byte strings

    def add(self, other: Feature) -> None:
        if not other.records:
            return
        first = not self.records
        self.records += other.records
        self.types = tuple(a + b for a, b in zip(self.types, other.types, strict=True))
        self.values = other.values if first else _span(self.values, other.values)
        self.bytes = other.bytes if first else _span(self.bytes, other.bytes)


@dataclass
class Survey:
    """The contents of a file of any format, or of a folder of images."""

    path: str
    compressed: bool = False
    file_bytes: int = 0
    records: int = 0
    payload_bytes: int = 0
    smallest: int = 0
    largest: int = 0
    lost_places: int = 0
    lost_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    examples: int = 0
    sequences: int = 0
    others: int = 0
    features: dict[str, Feature] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)  # of Parquet and arrays: their types
    call: str = ""  # that reads arrays, or a folder of images
    row_groups: int = 0
    group_rows: int = 0  # of the largest row group
    group_bytes: int = 0  # of the largest one, decompressed

    @property
    def mean(self) -> float:
        return self.payload_bytes / self.records if self.records else 0.0

    def add(self, other: Survey) -> None:
        """Add the counts of another survey; lists of damage are not joined."""
        if other.records:
            least = min(self.smallest, other.smallest) if self.records else other.smallest
            self.smallest, self.largest = least, max(self.largest, other.largest)
        for name in ("file_bytes", "records", "payload_bytes", "lost_places", "lost_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("examples", "sequences", "others"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, feature in other.features.items():
            self.features.setdefault(name, Feature()).add(feature)
        self.columns = self.columns or other.columns
        self.call = self.call or other.call
        self.row_groups += other.row_groups
        self.group_rows = max(self.group_rows, other.group_rows)
        self.group_bytes = max(self.group_bytes, other.group_bytes)


def _span(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])


class Bar:
    """A progress bar if stderr is a terminal and tqdm is installed; otherwise nothing."""

    def __init__(self, total: int, unit: str, title: str = "") -> None:
        self._bar: Any = None
        if not sys.stderr.isatty():
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self._bar = tqdm(
            total=total, unit=unit, unit_scale=unit == "B", desc=title, file=sys.stderr, leave=False
        )

    def show(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def clear(self) -> None:
        """Clear the bar, so that a line can be printed on the same terminal."""
        if self._bar is not None:
            self._bar.clear()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()


def counted(number: int, what: str) -> str:
    """``"1 file"``, ``"2,000 files"``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def text_of(error: Exception) -> str:
    """The text of an error without the engine's name of the operation."""
    return str(error).removeprefix(f"{getattr(error, 'operation', '')}: ")


def is_rows(path: str) -> bool:
    """Whether it is arrays (npy, npz, IDX, HDF5, CIFAR), a folder of images or a snapshot."""
    name = without_query(path).lower()
    known = name.endswith((".npy", ".npz")) or is_idx(name) or is_hdf5_file(name)
    if known or is_url(path):
        return known
    return os.path.isdir(path) or is_snapshot(path) or cifar_classes(path) > 0


def find(patterns: Sequence[str]) -> list[str]:
    """Return the files of paths and patterns.

    Raises
    ------
    Failed
        There is no such file.
    """
    try:
        found = _engine.glob_files(list(patterns))
    except NotFound as error:
        raise Failed(text_of(error), 2) from None
    # A pattern that the shell expanded includes index files, too.
    return [path for path in found if not path.endswith(_INDEX)] or found


def survey(
    path: str, *, features: bool = False, writers: Sequence[Any] = (), first: int = 0
) -> Any:
    """Make one file's pass, see `surveys`. Sound records of TFRecord go to `writers`.

    With `features`, only the footer of a Parquet file is read.
    """
    if is_parquet(path):
        from .parquet import Pass

        decoding = Pass(path, read=not features)
        return decoding, decoding.run
    if not writers and is_rows(path):
        from . import rows

        reading = rows.Pass(path, read=not features)
        return reading, reading.run
    progress = _engine.Progress()
    if is_tar(path):
        return progress, lambda: _engine.survey_tar(path, progress)
    return progress, lambda: _engine.survey_tfrecord(path, progress, features, list(writers), first)


def surveys(paths: Sequence[str], *, features: bool = False) -> Iterator[Survey]:
    """Read files, as many at a time as there are cores; yield their surveys in order.

    Raises
    ------
    Failed
        A file cannot be read. Damage is no error.
    """
    with ThreadPoolExecutor(min(len(paths), _engine.usable_cores())) as pool:
        begun = [(path, *survey(path, features=features)) for path in paths]
        passes = [(path, progress, pool.submit(run)) for path, progress, run in begun]
        yield from _results(passes)


def copied(paths: Sequence[str], writers: Sequence[Any]) -> Iterator[Survey]:
    """The same, one file after the other; sound records go to the `writers` in turn."""
    first = 0
    with ThreadPoolExecutor(1) as pool:
        for path in paths:
            progress, run = survey(path, writers=writers, first=first)
            for found in _results([(path, progress, pool.submit(run))]):
                first += found.records
                yield found


def _results(passes: Sequence[tuple[str, Any, Future[Any]]]) -> Iterator[Survey]:
    try:
        # The engine reads a file twice.
        sizes = [size_of(path) for path, _, _ in passes if not is_url(path)]
        with Bar(sum(sizes) if len(sizes) == len(passes) else 0, "B") as bar:
            for path, _, future in passes:
                while not wait([future], timeout=_REDRAWN_S).done:
                    bar.show(sum(progress.bytes for _, progress, _ in passes) // 2)
                bar.clear()
                yield _survey_of(path, future.result())
    except (Error, OSError) as error:
        raise Failed(text_of(error)) from None
    finally:
        for _, progress, future in passes:
            progress.stop()
            future.cancel()


def _survey_of(path: str, found: dict[str, Any]) -> Survey:
    found["damage"] = [Damage(**place) for place in found["damage"]]
    found["features"] = {name: Feature(**feature) for name, feature in found["features"].items()}
    return Survey(_engine.without_secrets(path), **found)


def looks_like(found: Survey) -> str:
    """Return a guess at the kind of a file without a sound record; empty: no guess."""
    known = is_parquet(found.path) or is_rows(found.path)
    if found.records or found.compressed or not found.file_bytes or known:
        return ""
    return "it is not a tar archive" if is_tar(found.path) else "it is not a TFRecord file"
