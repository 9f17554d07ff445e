"""``penstock convert INPUT... OUTPUT``: files of one format, or images, into another format."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..base.element_spec import TensorSpec
from ..base.file_kinds import cifar_classes, is_hdf5_file, is_idx, is_parquet, is_tar, kind_of
from ..base.remote import without_query
from ..dataset import Dataset
from ..errors import Error, InvalidArgument
from ..features import bytes as bytes_feature
from ..features import float32, int64, parse_example
from ..files import TFRecordWriter
from ..writers import Row, Spec, flat, is_picture, open_output
from . import Failed, bytes_text
from .files import Bar, Feature, Survey, copied, counted, find, surveys, text_of
from .rows import cifar, hdf5_columns
from .samples import SampleColumns
from .verify import print_damage

_IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_ARRAYS = {".npy", ".npz"}
_NUMBERS = ("npy", "npz", "idx", "hdf5")  # outputs of arrays

Said = list[str]


@dataclass
class Rows:
    """The rows of the inputs."""

    spec: Spec
    rows: Iterator[Row]
    count: int  # 0: unknown
    said: Said = field(default_factory=list)  # printed at the end


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="write images, arrays, HDF5, Parquet, TFRecord, tar, ... in another format",
        description="INPUT is a folder of class folders of images, .npy or .npz files, IDX files "
        "(.idx, ...-idx3-ubyte), CIFAR's .bin files, HDF5 files (.h5, .hdf5), Parquet files, "
        "TFRecord files, or tar archives of samples. OUTPUT ends in .tar, .tar.gz, "
        ".tgz, .parquet, .npy, .npz, .h5 or as IDX files do; otherwise it is a TFRecord. It "
        "appears when it is complete.",
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="a folder, or files of one kind")
    add("output", metavar="OUTPUT", help="the file to write")
    add(
        "--columns",
        type=_names,
        metavar="A,B",
        help="of arrays, HDF5, Parquet, tf.Examples: only these",
    )
    add("--shards", type=_shards, default=1, help="write so many files, OUTPUT-00000-of-... (1)")
    add("--skip-damage", action="store_true", help="leave out what is damaged")
    add("--overwrite", action="store_true", help="OUTPUT may be there already")
    parser.set_defaults(run=run)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _shards(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 99_999:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of files; give 1 to 99999")
    return number


def run(options: argparse.Namespace) -> int:
    try:
        kind = kind_of(options.output)
    except InvalidArgument as error:
        raise Failed(text_of(error), 2) from None
    copies, make = _input(options.inputs, options.skip_damage, kind, options.columns)
    paths = shard_paths(options.output, options.shards)
    for path in paths:
        if os.path.lexists(path) and not options.overwrite:
            raise Failed(f"{path} already exists; --overwrite replaces it", 2)
    try:
        records, said = (
            copy_records(copies, paths, options.skip_damage)
            if copies
            else (write_rows(make(), paths))
        )
    except (Error, OSError) as error:
        raise Failed(text_of(error)) from None
    size = sum(os.path.getsize(path) for path in paths)
    where = paths[0] if len(paths) == 1 else f"{len(paths)} files, {paths[0]} to {paths[-1]}"
    what = {"tar": "sample", "tfrecord": "record"}.get(kind, "row")
    print(f"{counted(records, what)}, {bytes_text(size)}: {where}")
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


def _input(
    inputs: list[str], skip: bool, kind: str, columns: list[str] | None
) -> tuple[list[str], Callable[[], Rows]]:
    """Files whose records are copied as they are; or none, and a function that opens the rows."""
    folders = [path for path in inputs if os.path.isdir(path)]
    if folders:
        if len(inputs) > 1:
            raise Failed("give one folder of class folders, and nothing else", 2)
        return [], lambda: _chosen(image_rows(Path(inputs[0]), kind), columns)
    paths = find(inputs)
    kinds = {_kind_of_input(path) for path in paths}
    if len(kinds) > 1:
        raise Failed(f"give files of one kind; there are {' and '.join(sorted(kinds))}", 2)
    (found,) = kinds
    if found == kind == "tfrecord":
        if columns:
            raise Failed("TFRecord files are copied record by record, and have no --columns", 2)
        return paths, lambda: Rows({}, iter(()), 0)
    if found == "Parquet":
        return [], lambda: parquet_rows(paths, skip, kind, columns)
    if found == "HDF5":
        return [], lambda: hdf5_rows(paths, skip, kind, columns)
    openers: dict[str, Callable[[], Rows]] = {
        "tar archives": lambda: sample_rows(paths, skip, kind),
        "CIFAR-10": lambda: cifar_rows(paths, 10, skip, kind),
        "CIFAR-100": lambda: cifar_rows(paths, 100, skip, kind),
        "arrays": lambda: array_rows(paths, kind),
        "IDX": lambda: idx_rows(paths, skip, kind),
        "tfrecord": lambda: example_rows(paths, skip),
    }
    return [], lambda: _chosen(openers[found](), columns)


def _kind_of_input(path: str) -> str:
    if is_tar(path):
        return "tar archives"
    if is_parquet(path):
        return "Parquet"
    if is_idx(path):
        return "IDX"
    if is_hdf5_file(path):
        return "HDF5"
    classes = cifar_classes(path)
    if classes:
        return f"CIFAR-{classes}"
    return "arrays" if os.path.splitext(path)[1] in _ARRAYS else "tfrecord"


def _chosen(rows: Rows, columns: list[str] | None) -> Rows:
    """The rows with these columns."""
    if not columns:
        return rows
    for name in columns:
        if name not in rows.spec:
            raise Failed(f"there is no column {name!r}; there are {', '.join(rows.spec)}", 2)
    rows.spec = {name: rows.spec[name] for name in columns}
    rows.rows = ({name: row[name] for name in columns} for row in rows.rows)
    return rows


def copy_records(paths: list[str], outputs: list[str], skip: bool) -> tuple[int, Said]:
    """Copy the sound records of TFRecord files, in order, to the outputs in turn."""
    total = Survey("")
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                TFRecordWriter(path, compression="gzip" if path.endswith(".gz") else "none")
            )
            for path in outputs
        ]
        for found in copied(paths, [writer._native for writer in writers]):
            print_damage(found)
            total.add(found)
            if found.lost_places and not skip:
                raise Failed(
                    f"{found.path} is damaged, and nothing was written; --skip-damage leaves out "
                    f"{counted(found.lost_places, 'place')} of {found.lost_bytes:,} bytes"
                )
    if not total.lost_places:
        return total.records, []
    places = counted(total.lost_places, "damaged place")
    return total.records, [f"left out: {places}, {total.lost_bytes:,} bytes"]


def write_rows(rows: Rows, outputs: list[str]) -> tuple[int, Said]:
    """Write rows to the outputs in turn."""
    number = 0
    with contextlib.ExitStack() as stack:
        writers = []
        for path in outputs:
            try:
                writers.append(open_output(path, rows.spec))
            except InvalidArgument as error:
                raise Failed(text_of(error), 2) from None
            stack.callback(writers[-1].discard)
        with Bar(rows.count, " rows") as bar:
            for row in rows.rows:
                writers[number % len(writers)].write(row)
                number += 1
                if number % 64 == 0:
                    bar.show(number)
        for writer in writers:
            writer.close()
    return number, rows.said


def _surveyed(paths: list[str], skip: bool, features: bool = False) -> Survey:
    """The counts of the files, whose damage is printed, and an error unless `skip`."""
    total = Survey("")
    for found in surveys(paths, features=features):
        print_damage(found)
        total.add(found)
    if total.lost_places and not skip:
        raise Failed(
            f"{counted(total.lost_places, 'damaged place')}, and nothing was written; "
            f"--skip-damage leaves out {total.lost_bytes:,} bytes"
        )
    return total


def _fed(dataset: Dataset, skip: bool, said: Said) -> Iterator[Row]:
    """The rows of a Dataset, without lost ones if `skip`; these are counted in `said`."""
    with dataset.build(on_error="skip" if skip else "raise") as feed:
        yield from feed
        lost = feed.stats()["losses"]
    if lost:
        said.append(f"left out: {counted(len(lost), 'row')}, the first: {lost[0][2]}")


def _rows_of(dataset: Dataset, skip: bool, count: int) -> Rows:
    rows = Rows({}, iter(()), count)
    with contextlib.suppress(InvalidArgument):  # there is no element
        rows.spec = dataset.element_spec
    rows.rows = _fed(dataset, skip, rows.said)
    return rows


def sample_rows(paths: list[str], skip: bool, kind: str) -> Rows:
    """Samples of tar archives: the key and the fields of each, of which arrays are decoded."""
    total = _surveyed(paths, skip)
    dataset = Dataset.tar(paths)
    rows = _rows_of(dataset, skip, total.records)
    if kind == "tar" or not rows.spec:
        return rows
    columns = SampleColumns(dataset, numbers=kind in _NUMBERS)
    rows.spec = columns.spec
    rows.rows = map(columns.row, rows.rows)
    rows.said += columns.said
    return _with_parsing(rows, kind)


def cifar_rows(paths: list[str], classes: int, skip: bool, kind: str) -> Rows:
    """Images and labels of CIFAR's files."""
    dataset = cifar(classes)(paths)
    return _with_parsing(_rows_of(dataset, skip, int(dataset.cardinality() or 0)), kind)


def example_rows(paths: list[str], skip: bool) -> Rows:
    """The features of tf.Examples, which all of them have."""
    total = _surveyed(paths, skip, features=True)
    if total.examples != total.records or total.sequences:
        raise Failed(
            f"{counted(total.records - total.examples + total.sequences, 'record')} of "
            f"{total.records:,} are no tf.Examples of features alone, and only those have columns"
        )
    features = {name: _declared(name, total.features[name], total) for name in total.features}
    if not features:
        raise Failed("the records have no features", 2)
    dataset = Dataset.tfrecord(paths).map(parse_example(features))
    return _rows_of(dataset, skip, total.records)


def _declared(name: str, feature: Feature, total: Survey) -> Any:
    """The declaration of a feature that all records have, of one type."""
    kinds = [number for number in (1, 2, 3) if feature.types[number]]
    if len(kinds) != 1 or feature.types[kinds[0]] != total.examples:
        raise Failed(f"not all records have the feature {name!r} with values of one type")
    least, most = feature.values
    if kinds[0] == 1:
        if (least, most) != (1, 1):
            raise Failed(f"{name!r} has several byte strings in a record, which no column has")
        return bytes_feature()
    make = float32 if kinds[0] == 2 else int64
    if least != most:
        return make(ragged=True)
    return make() if most == 1 else make((most,))


def parquet_rows(paths: list[str], skip: bool, kind: str, columns: list[str] | None) -> Rows:
    """Rows of Parquet files."""
    dataset = Dataset.parquet(paths, columns)
    rows = _rows_of(dataset, skip, len(dataset))
    return _with_parsing(rows, kind)


def hdf5_rows(paths: list[str], skip: bool, kind: str, columns: list[str] | None) -> Rows:
    """Rows of the data sets of HDF5 files, file after file; the first file has the names."""
    others: dict[str, int] = {}
    names = {name: name for name in columns or ()}
    if not names:
        names, others = hdf5_columns(paths[0])
    first, *more = (Dataset.hdf5(path, names) for path in paths)
    dataset = first.concatenate(*more) if more else first
    rows = _rows_of(dataset, skip, int(dataset.cardinality() or 0))
    rows.said += [f"left out: {name}, which has {counted(n, 'row')}" for name, n in others.items()]
    return _with_parsing(rows, kind)


def idx_rows(paths: list[str], skip: bool, kind: str) -> Rows:
    """Rows of IDX files side by side, each under its name without the end that makes it IDX."""
    named = {_idx_column(path): Dataset.idx(path) for path in paths}
    if len(named) != len(paths):
        raise Failed("two of the files would be one column", 2)
    lengths = {name: dataset.cardinality() for name, dataset in named.items()}
    _equally_long(lengths)
    count = int(next(iter(lengths.values())) or 0)
    return _with_parsing(_rows_of(Dataset.zip(**named), skip, count), kind)


def _idx_column(path: str) -> str:
    name = os.path.basename(without_query(path)).removesuffix(".gz").removesuffix(".idx")
    return name.rpartition("-idx")[0] or name.rpartition(".idx")[0] or name


def _with_parsing(rows: Rows, kind: str) -> Rows:
    """Add the text that says how to read tf.Examples of these rows."""
    if kind == "tfrecord":
        rows.said += _parsing(rows.spec)
    return rows


def image_rows(folder: Path, kind: str) -> Rows:
    """Image files unchanged, each with its label: classes, files and labels of image_folder."""

    def is_class(entry: Path) -> bool:
        return entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".")

    def is_hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    classes = sorted(entry.name for entry in folder.iterdir() if is_class(entry))
    files = []
    left_out = 0
    for label, name in enumerate(classes):
        inside = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        inside = [path for path in inside if not is_hidden(path)]
        images = [path for path in inside if path.suffix.lower() in _IMAGES]
        left_out += len(inside) - len(images)
        files += [(label, path) for path in images]
    if not files:
        raise Failed(f"{folder} has no folders with images in them, one for each class", 2)

    def row(label: int, path: Path) -> Row:
        if kind == "tar":
            key = str(path.relative_to(folder).with_name(path.stem.replace(".", "_")))
            field = path.suffix.lower().removeprefix(".")
            return {"__key__": key, field: path.read_bytes(), "cls": str(label)}
        name = os.fsencode(path.relative_to(folder))
        text: Any = name if kind == "tfrecord" else name.decode("utf-8", "backslashreplace")
        return {"image": path.read_bytes(), "label": np.int64(label), "name": text}

    spec: dict[str, Any] = {
        "image": TensorSpec((), bytes, "image"),
        "label": TensorSpec((), np.dtype(np.int64), "label"),
        "name": TensorSpec((), bytes if kind == "tfrecord" else str, "name"),
    }
    said = [f"label {label}: {name}" for label, name in enumerate(classes)]
    if left_out:
        said.append(f"left out: {counted(left_out, 'file')} not named as images are")
    rows = (row(*file) for file in files)
    return Rows({} if kind == "tar" else spec, rows, len(files), said)


def array_rows(paths: list[str], kind: str) -> Rows:
    """Row i of every array."""
    arrays = _load_arrays(paths)
    _equally_long({name: len(array) for name, array in arrays.items()})
    count = len(next(iter(arrays.values())))
    spec = {name: TensorSpec(array.shape[1:], array.dtype, name) for name, array in arrays.items()}
    rows = ({name: array[i] for name, array in arrays.items()} for i in range(count))
    return _with_parsing(Rows(spec, rows, count), kind)


def _equally_long(lengths: dict[str, Any]) -> None:
    if len(set(lengths.values())) != 1:
        each = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise Failed(f"arrays must have equally many rows: {each}", 2)


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


def _parsing(spec: Spec) -> Said:
    """The text that says how to read tf.Examples of rows."""
    lines = ["", "penstock.parse_example({"]
    raw = []
    leaves = flat(spec)
    for name in sorted(leaves):
        leaf = leaves[name]
        shape = leaf.shape
        if is_picture(leaf) and None not in shape:
            raw.append(f'penstock.decode_raw({name!r}, "uint8", {shape})')
            lines.append(f"    {name!r}: penstock.bytes(),")
        elif not isinstance(leaf.dtype, np.dtype) or is_picture(leaf) or leaf.dtype.kind in "SU":
            many = shape and not is_picture(leaf)
            lines.append(f"    {name!r}: penstock.bytes({'many=True' if many else ''}),")
        else:
            kind = "float32" if leaf.dtype.kind == "f" else "int64"
            form = "ragged=True" if None in shape else shape if math.prod(shape) != 1 else ""
            lines.append(f"    {name!r}: penstock.{kind}({form}),")
    return [*lines, "})", *(f"then {operation}" for operation in raw)]
