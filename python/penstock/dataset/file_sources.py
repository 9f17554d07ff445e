"""The sources that read files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..base.arguments import compression as compression_of
from ..base.arguments import dtype_of, flag, integer, real, several, string, text
from ..base.arguments import path as path_of
from ..errors import InvalidArgument
from .chain import Chain

if TYPE_CHECKING:
    from .dataset import Dataset

Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Files: TypeAlias = "Path | Sequence[Path]"


class FileSources(Chain):
    """The class methods of `Dataset` that begin with files."""

    @classmethod
    def tfrecord(
        cls,
        files: Files,
        *,
        compression: str = "",
        stream: bool = False,
        index: str | None = None,
    ) -> Dataset:
        """Records of TFRecord files, as byte strings. Of compressed files: a stream.

        Both checksums of every record are verified. Damage is a `DataLoss` at its place that names
        file, byte and record, and everything around it is fed; damage of compressed bytes costs the
        rest of its file.

        Parameters
        ----------
        files : path, pattern, or list of these
            ``*``, ``?`` and ``[...]`` as in a shell; a pattern's files come in the order of their
            names.
        compression : {"", "none", "gzip", "zlib"}
            "": each file tells by what it begins with, or by its name.
        stream : bool
            Read in order, and do not go through the files beforehand: for who reads once. It has no
            length then and is shuffled by a buffer.
        index : {None, "beside"}
            "beside": where each record lies is kept in ``<file>.penstock-index``, so that only the
            first one who builds this goes through the files beforehand, and worker processes and
            later runs do not. Made again when a file was changed; where it cannot be written it is
            in memory, as with None. Of plain files only.
        """
        return cls._make("tfrecord", _reading("tfrecord", files, compression, stream, index))

    @classmethod
    def lines(
        cls,
        files: Files,
        *,
        compression: str = "",
        stream: bool = False,
        index: str | None = None,
    ) -> Dataset:
        """Lines of text files (UTF-8), without their ends; parameters as of `tfrecord`.

        A line that is no UTF-8 is a `DataLoss` that names file, record and byte. A zlib file cannot
        be told from text: say so.
        """
        return cls._make("lines", _reading("lines", files, compression, stream, index))

    @classmethod
    def files(cls, files: Files, labels: Sequence[int] | None = None) -> Dataset:
        """Whole files: ``{"bytes": bytes, "path": str}``, with labels also ``"label": int64``.

        Workers read the files. A file that cannot be read is a `NotFound`, `System` or `DataLoss`
        at its place that names it.

        Parameters
        ----------
        files : path, pattern, or list of these
            As of `tfrecord`. The files are looked up when the Dataset is first built.
        labels : list or array of int, optional
            One for each file, in their order.

        Examples
        --------
        >>> scans = penstock.Dataset.files("scans/*.png")
        >>> scans.map(penstock.image.decode(channels=1, fields="bytes"))
        """
        numbers = None
        if labels is not None:
            numbers = [
                integer("labels", label, -(1 << 63), operation="files")
                for label in several("labels", labels, "integers, one for each file", "files")
            ]
        return cls._make("files", (_paths(files, "files"), numbers))

    @classmethod
    def image_folder(
        cls,
        root: Path,
        classes: Sequence[str] | None = None,
        *,
        validation_split: float | None = None,
        subset: str | None = None,
        seed: int = 0,
        include: str | None = None,
        follow_links: bool = False,
    ) -> Dataset:
        """Images in a folder of folders: ``{"image": bytes, "label": int64, "path": str}``.

        Each folder in `root` is a class, with its files at any depth. Classes are sorted by name
        and numbered from 0; the files of each are sorted too. `penstock.image.decode` decodes them.
        Workers read the files. A file that cannot be read is a `NotFound`, `System` or `DataLoss`
        at its place that names it.

        Parameters
        ----------
        root : path
            Gone over when the Dataset is first built.
        classes : list of str, optional
            The folders to take, in the order of their labels. None: all.
        validation_split : float, optional
            This part of each class, between 0 and 1, is for validation.
        subset : {"training", "validation"}, optional
            Which part this is. Two Datasets of the same split and seed have no file in common, and
            together all.
        seed : int
            Chooses the files for validation.
        include : str, optional
            A pattern of files' names, such as ``"*.jpg"``. None: ``.jpg``, ``.jpeg`` and ``.png``,
            in upper case, too. Names that begin with a dot are left out.
        follow_links : bool
            Enter folders that are links. Links to files are always read.

        Examples
        --------
        >>> split = {"validation_split": 0.2, "seed": 1}
        >>> train = penstock.Dataset.image_folder("flowers", subset="training", **split)
        >>> test = penstock.Dataset.image_folder("flowers", subset="validation", **split)
        """
        operation = "image_folder"
        named = [] if classes is None else several("classes", classes, "names", operation)
        if classes is not None and not named:
            raise InvalidArgument("classes is empty; give names, or None", operation)
        return cls._make(
            operation,
            (
                path_of(root, operation),
                [path_of(name, operation) for name in named],
                None
                if validation_split is None
                else real("validation_split", validation_split, operation),
                "" if subset is None else string("subset", subset, operation),
                integer("seed", seed, 0, (1 << 64) - 1, operation=operation),
                "" if include is None else path_of(include, operation),
                flag("follow_links", follow_links, operation),
            ),
        )

    @classmethod
    def snapshot(cls, path: Path) -> Dataset:
        """Elements of a file that `Dataset.cache` with a path made, at any place.

        Every element's checksum is verified when it is read. Damage is a `DataLoss` at its place
        that names file, element and byte, and everything around it is fed.
        """
        return cls._make("snapshot", (path_of(path, "snapshot"),))

    @classmethod
    def csv(
        cls,
        files: Files,
        columns: Mapping[str, Any],
        *,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        compression: str = "",
        stream: bool = False,
        index: str | None = None,
    ) -> Dataset:
        """Records of CSV files (RFC 4180), as a dict of the columns that are wanted.

        Fields in quotes may have line ends and doubled quotes in them; empty lines are passed over.
        A record with more or fewer columns than the header, or with a field that is no such number
        or, of a `str`, no UTF-8, is a `DataLoss` that names file, record, line and column.

        Parameters
        ----------
        files, compression, stream, index
            As of `lines`.
        columns : dict
            Name to what it is: a dtype of numbers (bool, integers, float32, float64), `str` or
            `bytes`. ``(dtype, default)``: the default is what an empty field stands for; without
            one, an empty field is an error where a number is wanted.
        header : bool or list of str
            True: the first record of each file names its columns. Of files without one: the names
            of all their columns.
        delimiter : str
            One character.

        Examples
        --------
        >>> penstock.Dataset.csv("prices-*.csv", {"day": str, "price": ("float32", 0.0)})
        """
        if header is True:
            names: list[str] = []
        else:
            given = several("header", header, "the names of all columns, or True", "csv")
            names = [text(name, "csv") for name in given]
            if not names:
                raise InvalidArgument(
                    f"header is {header!r}; give True, or the names of all columns", "csv"
                )
        if not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()):
            raise InvalidArgument(f"delimiter is {delimiter!r}; give one character", "csv")
        if not isinstance(columns, Mapping):
            raise InvalidArgument(
                f"columns is {columns!r}; give a dict of names and dtypes, such as {{'n': int}}",
                "csv",
            )
        wanted = [_column(name, what) for name, what in columns.items()]
        paths, *reading = _reading("csv", files, compression, stream, index)
        return cls._make("csv", (paths, wanted, names, delimiter, *reading))

    @classmethod
    def fixed_records(
        cls,
        files: Files,
        record_bytes: int,
        *,
        header_bytes: int = 0,
        footer_bytes: int = 0,
        compression: str = "",
        stream: bool = False,
    ) -> Dataset:
        """Records of one length: arrays uint8 ``(record_bytes,)``. Of compressed files: a stream.

        Parameters
        ----------
        header_bytes, footer_bytes : int
            At the front and at the end of each file, that are no records.
        files, compression, stream
            As of `tfrecord`; a zlib file cannot be told from records: say so.
        """
        sizes = (
            integer("record_bytes", record_bytes, 1, operation="fixed_records"),
            integer("header_bytes", header_bytes, 0, operation="fixed_records"),
            integer("footer_bytes", footer_bytes, 0, operation="fixed_records"),
        )
        paths, *reading = _reading("fixed_records", files, compression, stream)
        return cls._make("fixed_records", (paths, *sizes, *reading))

    @classmethod
    def idx(
        cls,
        images: Files,
        labels: Files | None = None,
        *,
        compression: str = "",
        stream: bool = False,
    ) -> Dataset:
        """Rows of IDX files, the format of MNIST, and their labels. Of compressed files: a stream.

        Dtype and shape are what the files say: of ``train-images-idx3-ubyte`` uint8 ``(28, 28)``;
        numbers of several bytes come in the machine's byte order. Every file is as long as its
        header says, or a `DataLoss` names file and byte.

        Parameters
        ----------
        images : path, pattern, or list of these
            Of any number of axes, of which the first one counts rows; gzip and zlib files too.
        labels : the same, optional
            File by file as many rows as of `images`. Elements are ``{"image": ..., "label": ...}``
            then, and just the rows without.
        compression, stream
            As of `tfrecord`. The length of such a stream is known.

        Examples
        --------
        >>> penstock.Dataset.idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
        """
        named = [] if labels is None else _paths(labels, "idx")
        if labels is not None and not named:
            raise InvalidArgument("the list of labels is empty; give files, or None", "idx")
        paths, *reading = _reading("idx", images, compression, stream)
        return cls._make("idx", (paths, named, *reading))

    @classmethod
    def cifar10(cls, files: Files, *, compression: str = "", stream: bool = False) -> Dataset:
        """Records of CIFAR-10's binary files (``data_batch_*.bin``). Of compressed files: a stream.

        Elements are ``{"image": uint8 (3, 32, 32), "label": uint8}``: red, green and blue planes,
        row by row, as the files have them. ``np.moveaxis(image, 0, -1)`` is the picture with its
        channels last. A label above 9 is a `DataLoss`, as is a file that is no whole number of
        records. The files do not say how many they have: ``assert_cardinality(50000)`` does.

        Parameters
        ----------
        files, compression, stream
            As of `tfrecord`; a zlib file cannot be told from records: say so. An archive
            (``.tar.gz``) is to be unpacked.
        """
        return cls._make("cifar10", _reading("cifar10", files, compression, stream))

    @classmethod
    def cifar100(cls, files: Files, *, compression: str = "", stream: bool = False) -> Dataset:
        """Records of CIFAR-100's binary files (``train.bin``), as `cifar10` gives them.

        Elements are ``{"image": ..., "label": uint8, "coarse_label": uint8}``: the fine label, of
        100, and that of its 20 superclasses.
        """
        return cls._make("cifar100", _reading("cifar100", files, compression, stream))


def _reading(
    operation: str, files: Files, compression: str, stream: bool, *index: str | None
) -> tuple[Any, ...]:
    """What the sources have in common, checked, in the order that the engine takes it in."""
    for given in index:
        if given not in (None, "beside"):
            raise InvalidArgument(f"index is {given!r}; give 'beside', or None", operation)
    return (
        _paths(files, operation),
        compression_of(compression, operation),
        bool(stream),
        *(given or "" for given in index),
    )


def _column(name: str, what: Any) -> tuple[str, str, bytes | None]:
    """A column's name, type and default, as the engine takes them."""
    name, default = text(name, "csv"), None
    if isinstance(what, tuple) and len(what) == 2:
        what, default = what
    if what is str or what is bytes:
        kind = "text" if what is str else "bytes"
        if default is not None and not isinstance(default, what):
            raise InvalidArgument(f"{name!r}: the default {default!r} is no {what.__name__}", "csv")
    else:
        dtype = dtype_of(what)
        if dtype is None:
            raise InvalidArgument(
                f"{name!r} is {what!r}; give a dtype, str or bytes, or (dtype, default)", "csv"
            )
        kind = dtype.name
    if default is None or isinstance(default, bytes):
        return name, kind, default
    return name, kind, text(str(default), "csv").encode()


def _paths(files: Files, operation: str) -> list[str]:
    if isinstance(files, (str, bytes, os.PathLike)):
        return [path_of(files, operation)]
    try:
        given = list(files)
    except TypeError:
        raise InvalidArgument(f"{files!r} is no path, nor a list of paths", operation) from None
    return [path_of(each, operation) for each in given]
