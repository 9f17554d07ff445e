"""The sources that read files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import _engine
from ..base.arguments import compression as compression_of
from ..base.arguments import dtype_of, flag, integer, real, several, string, text
from ..base.arguments import path as path_of
from ..base.hdf5 import CACHE_BYTES, hdf5_call, opened, rows_of
from ..base.remote import Identity, is_url, local_copy, without_query
from ..errors import InvalidArgument
from .arrow import column_names, fills_of
from .chain import Chain
from .npy import Stored, open_npy, open_npz
from .parquet import RowGroups, footers_of, pyarrow_parquet

if TYPE_CHECKING:
    from .dataset import Dataset

Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Files: TypeAlias = "Path | Sequence[Path]"


def of_hdf5(
    cls: type[Chain],
    nest: Any,
    operation: str,
    cache_bytes: int = CACHE_BYTES,
    copy_of: tuple[str, Identity] | None = None,
) -> Dataset:
    """Return the rows of open data sets of one file, read natively where that can be.

    `copy_of`: the URL, and the version, of which the file is the copy.
    """
    call = hdf5_call(nest, operation, cache_bytes)
    if call is not None:
        return cls._make("hdf5", call if copy_of is None else (*copy_of, *call[2:]))
    rows = rows_of(nest, copy_of)
    return cls._make("source_python", (rows, len(rows), "hdf5"))


class FileSources(Chain):
    """The class methods of `Dataset` that read files."""

    @classmethod
    def tfrecord(
        cls,
        files: Files,
        *,
        compression: str = "",
        stream: bool = False,
        index: str | None = None,
    ) -> Dataset:
        """Records of TFRecord files, as byte strings. With compressed files: a stream.

        Both checksums of every record are verified. Damage is a `DataLoss` at its place that names
        file, byte and record, and the records around it are delivered; damage of compressed bytes
        loses the rest of the file.

        Parameters
        ----------
        files : path, URL, pattern, or list of these
            ``*``, ``?`` and ``[...]`` as in a shell; the files of a pattern are sorted by name.
            URLs, here and in every other source: see `penstock.remote_files`.
        compression : {"", "none", "gzip", "zlib"}
            "": detected for each file, by its first bytes or its name.
        stream : bool
            Read the files in order and do not index them, for a single pass. The Dataset then has
            no length and is shuffled by a buffer.
        index : {None, "beside"}
            "beside": the places of the records are saved in ``<file>.penstock-index``, so only the
            first build indexes the files, and later runs do not. The index is made again when its
            file was changed. If it cannot be written, it stays in memory, as with None. For plain
            files only.
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
        """Lines of text files (UTF-8), without line ends; the parameters are those of `tfrecord`.

        A line that is not UTF-8 is a `DataLoss` that names file, record and byte. zlib is not
        detected, because text may begin with the same bytes: give ``compression="zlib"``.

        Examples
        --------
        >>> Dataset.lines("train-*.jsonl.gz").map(json.loads)  # JSON lines
        """
        return cls._make("lines", _reading("lines", files, compression, stream, index))

    @classmethod
    def hdf5(cls, file: Any, datasets: Any, *, cache_bytes: int = CACHE_BYTES) -> Dataset:
        """Rows of data sets of an HDF5 file. Indexed.

        h5py finds the places of the chunks once. Worker threads then read and decompress the
        chunks, without h5py's lock. For a shuffle of compressed chunks use
        ``shuffle(block=rows of a chunk, window=...)``: in a global order nearly every row
        needs another chunk.

        Parameters
        ----------
        file : path, or open h5py.File or h5py.Group
        datasets : str, or tuple or dict of str
            Names of data sets in the file, with equally many rows. Element i is row i of each, in
            the same nest.
        cache_bytes : int
            Decoded chunks that are kept for further rows, least recently used first out.

        Raises
        ------
        InvalidArgument
            h5py is not installed; there is no such data set; their numbers of rows differ.
        DataLoss
            The file is damaged, or no HDF5 file.
        NotFound, System

        Notes
        -----
        Read natively: numbers, bools and complex numbers of either byte order; in one piece, or in
        chunks with the filters gzip, shuffle and fletcher32. Chunks that were never written have
        the fill value. Other data sets (strings, other filters, virtual or external storage) are
        read by h5py, row by row, in worker processes. Rows of compound types are refused.

        A damaged chunk is a `DataLoss` of its rows that names file, data set, chunk and byte.
        """
        copy_of = None
        if isinstance(file, (str, bytes, os.PathLike)) and is_url(url := path_of(file, "hdf5")):
            file, identity = local_copy(url)
            copy_of = url, identity
        nest = opened(file, datasets, "hdf5", copy_of and copy_of[0])
        most = integer("cache_bytes", cache_bytes, 1, operation="hdf5")
        return of_hdf5(cls, nest, "hdf5", most, copy_of)

    @classmethod
    def parquet(
        cls,
        files: Files,
        columns: Sequence[str] | None = None,
        *,
        nulls: str | Mapping[str, Any] = "error",
        cache_bytes: int = CACHE_BYTES,
    ) -> Dataset:
        """Rows of Parquet files, as dicts of their columns. Indexed.

        The footers, which are read here, give the number of rows. Python threads then let pyarrow
        decode whole row groups. Threads share the decoded ones; worker processes decode each for
        themselves. For a shuffle use ``shuffle(block="auto", window=...)``, with `cache_bytes` for
        twice so many row groups: in a global order nearly every row needs another row group.

        Parameters
        ----------
        files : path, pattern, or list of these
            As of `tfrecord`; of one schema.
        columns : list of str, optional
            The columns to read, in this order; ``"a/b"`` is the field b of the struct a. Only these
            are read from the files. None: all.
        nulls : {"error"} or dict
            As of `arrow`, as are the types of the elements.
        cache_bytes : int
            Decoded row groups that are kept for further rows, least recently used first out. In
            order, a second thread decodes the next row group if both fit.

        Raises
        ------
        InvalidArgument
            pyarrow is not installed; a file lacks a column, or has another type in it than the
            first file; a column of a type that elements cannot have.
        DataLoss
            A damaged footer.
        NotFound

        Notes
        -----
        Checksums of pages are verified where the files have them. A damaged row group is a
        `DataLoss` of its rows that names file and row group. So is a file that changed since its
        footer was read.

        Examples
        --------
        >>> data = penstock.Dataset.parquet("train-*.parquet", columns=["image/bytes", "label"])
        >>> data.shuffle(seed=7, block="auto", window=8).batch(64)
        """
        operation = "parquet"
        pyarrow_parquet(operation)
        names = column_names(columns, operation)
        most = integer("cache_bytes", cache_bytes, 1, operation=operation)
        paths = [os.fsdecode(path) for path in _engine.glob_files(_paths(files, operation))]
        groups = RowGroups(footers_of(paths), names)
        title = os.path.basename(without_query(paths[0]))
        if len(paths) > 1:
            title += f" and {len(paths) - 1} more"
        fills = fills_of(groups.schema, nulls, operation)
        return cls._make(
            "row_groups",
            (
                groups,
                groups.schema,
                groups.paths,
                groups.groups,
                fills,
                most,
                f"parquet({title}, {groups.rows})",
            ),
        )

    @classmethod
    def tar(
        cls,
        files: Files,
        *,
        fields: Sequence[str] | None = None,
        compression: str = "",
        stream: bool = False,
        index: str | None = None,
    ) -> Dataset:
        """Samples of tar archives, grouped as WebDataset does. Of compressed archives: a stream.

        Consecutive files whose names are equal up to the first dot of their last component are a
        sample: ``{"__key__": str, "jpg": bytes, "cls": bytes, ...}``, where the rest of the name,
        in lower case, is the field. Links, folders and files without a key are passed over.

        All samples have the same fields, or one that differs is a `DataLoss` that names file, key
        and what is missing. So are damage, an entry that is there twice and one whose name climbs
        out of its folder. Headers have checksums; the data in a tar archive has none.

        Parameters
        ----------
        files : path, pattern, or list of these
            As of `tfrecord`; also ``{000..127}`` and ``{a,b}``, as in a shell.
        fields : list of str, optional
            The extensions that are wanted, in this order; a sample may have others. None: those of
            the first sample.
        compression, stream, index
            As of `tfrecord`.

        Examples
        --------
        >>> penstock.Dataset.tar("shard-{000..127}.tar", fields=["jpg", "cls"]).shuffle(seed=7)
        """
        given = [] if fields is None else several("fields", fields, "extensions", "tar")
        names = [text(name, "tar") for name in given]
        if fields is not None and not names:
            raise InvalidArgument("fields is empty; give extensions, or None", "tar")
        paths, *reading = _reading("tar", files, compression, stream, index)
        return cls._make("tar", (paths, names, *reading))

    @classmethod
    def npy(cls, files: Path | Mapping[str, Path]) -> Dataset:
        """Rows of an ``.npy`` file, or of several side by side. Read in place, whatever their size.

        Only the header is read when this is called. Elements come in the machine's byte order.
        Rows that do not lie in one piece (Fortran order) are taken from a memory map, as
        `arrays` does. Arrays of objects are refused: nothing is ever unpickled.

        Parameters
        ----------
        files : path, or dict of paths
            Of a dict, element i is a dict with row i of each; the arrays are equally long.

        Raises
        ------
        DataLoss
            The file is not as long as its header says. So is a file that is another one when it is
            fed; a row that is gone by then is that element's failure.
        InvalidArgument
            An array of objects or a single value; arrays that are not equally long.
        """
        if isinstance(files, Mapping):
            given = {text(name, "npy"): path_of(path, "npy") for name, path in files.items()}
            if not given:
                raise InvalidArgument("the dict of files is empty; give files by names", "npy")
            return _side_by_side(cls, {name: open_npy(path) for name, path in given.items()}, "npy")
        return _rows(cls, open_npy(path_of(files, "npy")))

    @classmethod
    def npz(cls, file: Path) -> Dataset:
        """Rows of the equally long arrays in an ``.npz`` file: a dict by their names.

        Arrays that ``numpy.savez`` stored are read in place, as by `npy`. Those that
        ``numpy.savez_compressed`` wrote are read into memory once, here, and their checksums are
        verified.
        """
        return _side_by_side(cls, open_npz(path_of(file, "npz")), "npz")

    @classmethod
    def files(
        cls, files: Files, labels: Sequence[int] | None = None, *, index: str | None = None
    ) -> Dataset:
        """Whole files: ``{"bytes": bytes, "path": str}``, with labels also ``"label": int64``.

        Workers read the files. A file that cannot be read is a `NotFound`, `System` or `DataLoss`
        at its place that names it.

        Parameters
        ----------
        files : path, pattern, or list of these
            As of `tfrecord`. The files are looked up when the Dataset is first built.
        labels : list or array of int, optional
            One for each file, in their order.
        index : {None, "beside"}
            "beside": as for `image_folder`, of the folder in front of a pattern's first wildcard:
            ``scans.penstock-index`` of ``scans/*.png``.

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
        return cls._make("files", (_paths(files, "files"), numbers, _index_of("files", index)))

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
        index: str | None = None,
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
            A pattern of files' names, such as ``"*.jpg"``. None: ``.bmp``, ``.gif``, ``.jpeg``,
            ``.jpg``, ``.pgm``, ``.png``, ``.ppm`` and ``.webp``, in upper case, too. Names that
            begin with a dot are left out.
        follow_links : bool
            Enter folders that are links. Links to files are always read.
        index : {None, "beside"}
            "beside": what the folders list is saved in ``<root>.penstock-index``. Later runs list
            only the folders that have changed since, by their modification time. Any `classes`,
            `include`, split and `follow_links` share it. If it cannot be written, every run lists
            all folders, as with None. Not for URLs.

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
                _index_of(operation, index),
            ),
        )

    @classmethod
    def snapshot(cls, path: Path) -> Dataset:
        """Elements of a file that `Dataset.cache` with a path made. Indexed.

        Every element's checksum is verified when it is read. Damage is a `DataLoss` at its place
        that names file, element and byte, and the elements around it are delivered.
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
        """Records of CSV files (RFC 4180), as a dict of the declared columns.

        Quoted fields may contain line ends and doubled quotes; empty lines are skipped. A record
        is a `DataLoss` that names file, record, line and column if it has more or fewer columns
        than the header, a field that is not a number of its column's dtype, or a `str` field that
        is not UTF-8.

        Parameters
        ----------
        files, compression, stream, index
            As for `lines`.
        columns : dict
            Name to type: a numeric dtype (bool, integers, float32, float64), `str` or `bytes`.
            ``(dtype, default)``: the value of an empty field; without a default, an empty numeric
            field is an error.
        header : bool or list of str
            True: the first record of each file has the names of its columns. For files without a
            header: the names of all columns.
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
        """Records of one length: uint8 arrays ``(record_bytes,)``. With compressed files: a stream.

        Parameters
        ----------
        header_bytes, footer_bytes : int
            Bytes at the front and at the end of each file that are not records.
        files, compression, stream
            As for `tfrecord`; zlib is not detected: give ``compression="zlib"``.
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
        """Rows of IDX files, the format of MNIST, and labels. With compressed files: a stream.

        The files give dtype and shape: uint8 ``(28, 28)`` for ``train-images-idx3-ubyte``. Numbers
        of several bytes are converted to the machine's byte order. A file whose length differs
        from its header is a `DataLoss` that names file and byte.

        Parameters
        ----------
        images : path, pattern, or list of these
            Arrays of any number of axes, the first of which counts rows; also gzip and zlib files.
        labels : the same, optional
            Each file has as many rows as the corresponding file of `images`. With labels, elements
            are ``{"image": ..., "label": ...}``; without, an element is a row.
        compression, stream
            As for `tfrecord`. The length of such a stream is known.

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
        """Records of CIFAR-10's binary files (``data_batch_*.bin``). If compressed: a stream.

        Elements are ``{"image": uint8 (3, 32, 32), "label": uint8}``: red, green and blue planes,
        row by row, as in the files. ``np.moveaxis(image, 0, -1)`` puts the channels last. A label
        above 9 is a `DataLoss`, and so is a file that is not a whole number of records. The files
        do not contain the number of records: ``assert_cardinality(50000)`` checks it.

        Parameters
        ----------
        files, compression, stream
            As for `tfrecord`; zlib is not detected: give ``compression="zlib"``. Unpack an archive
            (``.tar.gz``) first.
        """
        return cls._make("cifar10", _reading("cifar10", files, compression, stream))

    @classmethod
    def cifar100(cls, files: Files, *, compression: str = "", stream: bool = False) -> Dataset:
        """Records of CIFAR-100's binary files (``train.bin``), like those of `cifar10`.

        Elements are ``{"image": ..., "label": uint8, "coarse_label": uint8}``: the fine label (of
        100) and the label of its superclass (of 20).
        """
        return cls._make("cifar100", _reading("cifar100", files, compression, stream))


def _rows(cls: type[Any], array: Stored | np.ndarray[Any, Any]) -> Dataset:
    """Rows of one array, by the engine's reader of files where that can."""
    if isinstance(array, Stored):
        if array.rows_in_place():
            return cls._make("file_rows", array.arguments())  # type: ignore[no-any-return]
        array = array.mapped()
    return cls.arrays(array)  # type: ignore[no-any-return]


def _side_by_side(
    cls: type[Any], arrays: Mapping[str, Stored | np.ndarray[Any, Any]], operation: str
) -> Dataset:
    lengths = {
        name: (each.header.shape if isinstance(each, Stored) else each.shape)[0]
        for name, each in arrays.items()
    }
    if len(set(lengths.values())) != 1:
        each = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidArgument(f"arrays must have equally many rows: {each}", operation)
    columns = tuple(_rows(cls, each) for each in arrays.values())
    return cls._make("zip", (list(arrays),), columns, several=True)  # type: ignore[no-any-return]


def _reading(
    operation: str, files: Files, compression: str, stream: bool, *index: str | None
) -> tuple[Any, ...]:
    """The common arguments of the sources, checked, in the order of the engine's parameters."""
    return (
        _paths(files, operation),
        compression_of(compression, operation),
        bool(stream),
        *(_index_of(operation, given) for given in index),
    )


def _index_of(operation: str, index: str | None) -> str:
    """The option `index`, checked, in the engine's form."""
    if index not in (None, "beside"):
        raise InvalidArgument(f"index is {index!r}; give 'beside', or None", operation)
    return index or ""


def _column(name: str, what: Any) -> tuple[str, str, bytes | None]:
    """A column's name, type and default, in the engine's form."""
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
        raise InvalidArgument(f"{files!r} is not a path, nor a list of paths", operation) from None
    return [path_of(each, operation) for each in given]
