"""The sources that read files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ._arguments import integer, text
from ._arguments import path as path_of
from ._chain import Chain
from .errors import InvalidArgument

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
        return cls._make(
            "tfrecord", (_paths(files, "tfrecord"), compression, bool(stream), index or "")
        )

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
        return cls._make("lines", (_paths(files, "lines"), compression, bool(stream), index or ""))

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
        elif isinstance(header, (str, bytes)) or not header:
            raise InvalidArgument(
                f"header is {header!r}; give True, or the names of all columns", "csv"
            )
        else:
            names = [text(name, "csv") for name in header]
        if not isinstance(delimiter, str) or len(delimiter.encode()) != 1:
            raise InvalidArgument(f"delimiter is {delimiter!r}; give one character", "csv")
        wanted = [_column(name, what) for name, what in dict(columns).items()]
        where = (_paths(files, "csv"), wanted, names, delimiter)
        return cls._make("csv", (*where, compression, bool(stream), index or ""))

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
            integer("record_bytes", record_bytes, 1),
            integer("header_bytes", header_bytes, 0),
            integer("footer_bytes", footer_bytes, 0),
        )
        return cls._make(
            "fixed_records", (_paths(files, "fixed_records"), *sizes, compression, bool(stream))
        )

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
        return cls._make("idx", (_paths(images, "idx"), named, compression, bool(stream)))

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
        return cls._make("cifar10", (_paths(files, "cifar10"), compression, bool(stream)))

    @classmethod
    def cifar100(cls, files: Files, *, compression: str = "", stream: bool = False) -> Dataset:
        """Records of CIFAR-100's binary files (``train.bin``), as `cifar10` gives them.

        Elements are ``{"image": ..., "label": uint8, "coarse_label": uint8}``: the fine label, of
        100, and that of its 20 superclasses.
        """
        return cls._make("cifar100", (_paths(files, "cifar100"), compression, bool(stream)))


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
        try:
            kind = np.dtype(what).name
        except TypeError:
            raise InvalidArgument(
                f"{name!r} is {what!r}; give a dtype, str or bytes, or (dtype, default)", "csv"
            ) from None
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
