"""``penstock convert INPUT... OUTPUT``: images, arrays, TFRecord and tar to TFRecord or tar."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset import Dataset
from ..errors import Error
from ..files import TarWriter, TFRecordWriter, example
from . import Failed, bytes_text
from .files import Bar, Survey, copied, counted, find, is_tar, surveys, text_of
from .verify import print_damage

_IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_ARRAYS = {".npy", ".npz"}

Said = list[str]
Writers = Sequence[Any]  # TFRecordWriter, or TarWriter


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="write folders of images, arrays, TFRecord or tar files as TFRecord or tar",
        description="Writes TFRecord from what INPUT is: a folder of class folders of images, .npy "
        "or .npz files, TFRecord files, or tar archives of samples. An OUTPUT that ends in .tar, "
        ".tar.gz or .tgz is an archive, of images or of samples. It appears when it is complete.",
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="a folder, or files of one kind")
    add("output", metavar="OUTPUT", help="the TFRecord file or archive to write")
    add("--shards", type=_shards, default=1, help="write so many files, OUTPUT-00000-of-... (1)")
    add("--skip-damage", action="store_true", help="TFRecord, tar: leave out what is damaged")
    add("--overwrite", action="store_true", help="OUTPUT may be there already")
    parser.set_defaults(run=run)


def _shards(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 99_999:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of files; give 1 to 99999")
    return number


def run(options: argparse.Namespace) -> int:
    to_tar = is_tar(options.output)
    write = _converter(options.inputs, options.skip_damage, to_tar)
    paths = shard_paths(options.output, options.shards)
    for path in paths:
        if os.path.lexists(path) and not options.overwrite:
            raise Failed(f"{path} already exists; --overwrite replaces it", 2)
    try:
        with contextlib.ExitStack() as stack:
            compression = "gzip" if options.output.endswith((".gz", ".tgz")) else "none"
            make: Any = TarWriter if to_tar else TFRecordWriter
            writers = [stack.enter_context(make(path, compression=compression)) for path in paths]
            said = write(writers)
    except (Error, OSError) as error:
        raise Failed(text_of(error)) from None
    records = sum(writer.samples if to_tar else writer.records for writer in writers)
    size = sum(os.path.getsize(path) for path in paths)
    where = paths[0] if len(paths) == 1 else f"{len(paths)} files, {paths[0]} to {paths[-1]}"
    print(f"{counted(records, 'sample' if to_tar else 'record')}, {bytes_text(size)}: {where}")
    for line in said:
        print(line)
    return 0


def shard_paths(output: str, count: int) -> list[str]:
    """``train.tfrecord`` as 2 files: ``train-00000-of-00002.tfrecord`` and the next."""
    if count == 1:
        return [output]
    stem, suffix = os.path.splitext(output.removesuffix(".gz"))
    if output.endswith(".gz"):
        suffix += ".gz"
    return [f"{stem}-{number:05}-of-{count:05}{suffix}" for number in range(count)]


def _converter(inputs: list[str], skip_damage: bool, to_tar: bool) -> Callable[[Writers], Said]:
    folders = [path for path in inputs if os.path.isdir(path)]
    if folders:
        if len(inputs) > 1:
            raise Failed("give one folder of class folders, and nothing else", 2)
        return lambda writers: write_images(Path(inputs[0]), writers, to_tar)
    paths = find(inputs)
    archives = [path for path in paths if is_tar(path)]
    if archives and len(archives) < len(paths):
        raise Failed("give files of one kind: tar archives, arrays, or TFRecord", 2)
    if archives:
        return lambda writers: write_samples(paths, writers, skip_damage, to_tar)
    if to_tar:
        raise Failed("an archive is written of a folder of images, or of archives", 2)
    arrays = [path for path in paths if os.path.splitext(path)[1] in _ARRAYS]
    if arrays and len(arrays) < len(paths):
        raise Failed("give files of one kind: arrays, or TFRecord", 2)
    if arrays:
        return lambda writers: write_arrays(paths, writers)
    return lambda writers: write_records(paths, writers, skip_damage)


def write_records(paths: list[str], writers: Writers, skip: bool) -> Said:
    """Copy the sound records of TFRecord files, in order, to the `writers` in turn."""
    total = Survey("")
    for found in copied(paths, [writer._native for writer in writers]):
        print_damage(found)
        total.add(found)
        if found.lost_places and not skip:
            raise Failed(
                f"{found.path} is damaged, and nothing was written; --skip-damage leaves out "
                f"{counted(found.lost_places, 'place')} of {found.lost_bytes:,} bytes"
            )
    if not total.lost_places:
        return []
    return [f"left out: {counted(total.lost_places, 'damaged place')}, {total.lost_bytes:,} bytes"]


def write_samples(paths: list[str], writers: Writers, skip: bool, to_tar: bool) -> Said:
    """Samples of tar archives: as they are, or a tf.Example of the key and the fields of each."""
    total = Survey("")
    for found in surveys(paths):
        print_damage(found)
        total.add(found)
    if total.lost_places and not skip:
        raise Failed(
            f"{counted(total.lost_places, 'damaged place')}, and nothing was written; "
            f"--skip-damage leaves out {total.lost_bytes:,} bytes"
        )
    samples = Dataset.tar(paths)
    with samples.build(on_error="skip" if skip else "raise") as feed:
        _write(feed if to_tar else map(example, feed), total.records, writers)
        lost = feed.stats()["losses"]
    if not lost:
        return []
    return [f"left out: {counted(len(lost), 'sample')}, the first: {lost[0][2]}"]


def write_images(folder: Path, writers: Writers, to_tar: bool = False) -> Said:
    """Write image files unchanged, each with the number of its class folder, sorted by name."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = []
    left_out = 0
    for label, name in enumerate(classes):
        inside = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        images = [path for path in inside if path.suffix.lower() in _IMAGES]
        left_out += len(inside) - len(images)
        files += [(label, path) for path in images]
    if not files:
        raise Failed(f"{folder} has no folders with images in them, one for each class", 2)

    def record(label: int, path: Path) -> Any:
        if to_tar:
            key = str(path.relative_to(folder).with_name(path.stem.replace(".", "_")))
            field = path.suffix.lower().removeprefix(".")
            return {"__key__": key, field: path.read_bytes(), "cls": str(label)}
        name = os.fsencode(path.relative_to(folder))
        return example({"image": path.read_bytes(), "label": label, "name": name})

    _write((record(*file) for file in files), len(files), writers)
    said = [f"label {label}: {name}" for label, name in enumerate(classes)]
    if left_out:
        said.append(f"left out: {counted(left_out, 'file')} not named as images are")
    return said


def write_arrays(paths: list[str], writers: Writers) -> Said:
    """Write a tf.Example for each i, with row i of every array."""
    arrays = _load_arrays(paths)
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1:
        each = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        raise Failed(f"arrays must have equally many rows: {each}", 2)
    (count,) = lengths
    pictures = {
        name for name, array in arrays.items() if array.dtype == np.uint8 and array.ndim > 1
    }

    def record(row: int) -> bytes:
        return example(
            {
                name: array[row].tobytes() if name in pictures else array[row]
                for name, array in arrays.items()
            }
        )

    _write(map(record, range(count)), count, writers)
    return _declared(arrays, pictures)


def _load_arrays(paths: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for path in paths:
        try:
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
            found = dict(loaded) if path.endswith(".npz") else {Path(path).stem: loaded}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise Failed(f"{path}: {error}") from None
        for name, array in found.items():
            if name in arrays:
                raise Failed(f"{path}: there is another array {name!r}", 2)
            if array.ndim == 0:
                raise Failed(f"{path}: {name!r} is no array of rows", 2)
            arrays[name] = array
    return arrays


def _declared(arrays: dict[str, np.ndarray[Any, Any]], pictures: set[str]) -> Said:
    """The text that tells how to read the rows."""
    lines = ["", "penstock.parse_example({"]
    raw = []
    for name in sorted(arrays):
        array = arrays[name]
        shape = array.shape[1:]
        if name in pictures:
            raw.append(f'penstock.decode_raw({name!r}, "uint8", {shape})')
            lines.append(f"    {name!r}: penstock.bytes(),")
        elif array.dtype.kind in "SU":
            lines.append(f"    {name!r}: penstock.bytes({'many=True' if shape else ''}),")
        else:
            kind = "float32" if array.dtype.kind == "f" else "int64"
            lines.append(
                f"    {name!r}: penstock.{kind}({shape if math.prod(shape) != 1 else ''}),"
            )
    return [*lines, "})", *(f"then {operation}" for operation in raw)]


def _write(records: Iterable[Any], count: int, writers: Writers) -> None:
    with Bar(count, " records") as bar:
        for number, record in enumerate(records):
            writers[number % len(writers)].write(record)
            if number % 64 == 0:
                bar.show(number)
