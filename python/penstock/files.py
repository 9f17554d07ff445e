"""Files that penstock writes: TFRecord, and the tf.Examples in it; tar archives of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _engine
from .base.arguments import compression as compression_of
from .base.arguments import path as path_of
from .base.arguments import text
from .errors import InvalidArgument
from .features import _BYTES, _FLOAT32, _INT64

if TYPE_CHECKING:
    from typing_extensions import Self


class _FileWriter:
    """What writers of files share."""

    path: str
    _native: Any

    @property
    def bytes_written(self) -> int:
        """Number of bytes written so far, before compression."""
        return int(self._native.bytes_written)

    def close(self) -> None:
        """Finish the file: it is synced and appears under its name. A second call does nothing.

        Raises
        ------
        System
            Writing failed; no file remains.
        """
        self._native.close()

    def discard(self) -> None:
        """Delete the unfinished file; no effect after `close`."""
        self._native.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


class TFRecordWriter(_FileWriter):
    """Writes a TFRecord file, which appears under its name when it is complete.

    As a context manager it closes the file at the end of the block. After an exception no new file
    remains, and an existing file of that name is unchanged.

    Parameters
    ----------
    path : path
    compression : {"none", "gzip", "zlib"}
        `Dataset.tfrecord` reads a compressed file in order only.

    Raises
    ------
    NotFound
        The folder does not exist.
    System
        The file cannot be created.

    Notes
    -----
    Any thread may call any method; records of several threads are written in the order of the
    calls.

    Examples
    --------
    >>> with penstock.TFRecordWriter("train.tfrecord") as writer:
    ...     for image, label in samples:
    ...         writer.write(penstock.example({"image": image, "label": label}))
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: str = "none") -> None:
        self.path = path_of(path, "tfrecord")
        self._native: _engine.TFRecordWriter = _engine.TFRecordWriter(
            self.path, compression_of(compression, "tfrecord")
        )

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Write the next record.

        Raises
        ------
        InvalidArgument
            The record does not consist of bytes; nothing was written.
        System
            Writing failed, for example on a full disk: the writer is closed, and no file remains.
        Closed
        """
        self._native.write(record)

    @property
    def records(self) -> int:
        """Number of records written so far."""
        return int(self._native.records)


class TarWriter(_FileWriter):
    """Writes samples as a tar archive, as WebDataset does. It appears when it is complete.

    As a context manager it closes the file at the end of the block; after an exception nothing is
    left of it, and a file of that name that was there before stays.

    Parameters
    ----------
    path : path
    compression : {"none", "gzip"}
        `Dataset.tar` reads a compressed file in order only.

    Raises
    ------
    NotFound
        There is no such folder.
    System
        The file cannot be made.

    Notes
    -----
    Any thread may call anything; samples of several threads come in the order of their calls. Equal
    samples give equal files: owners and times are zero.

    Examples
    --------
    >>> with penstock.TarWriter("train-000.tar") as writer:
    ...     for number, (jpeg, label) in enumerate(samples):
    ...         writer.write({"__key__": f"{number:06}", "jpg": jpeg, "cls": str(label)})
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: str = "none") -> None:
        self.path = path_of(path, "tar")
        if compression not in ("none", "gzip"):
            raise InvalidArgument(f"compression is {compression!r}; give 'none' or 'gzip'", "tar")
        self._native: _engine.TarWriter = _engine.TarWriter(self.path, compression)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write the next sample: its ``"__key__"``, and its fields by their extensions.

        Raises
        ------
        InvalidArgument
            A value is neither bytes nor str (written as UTF-8), or `Dataset.tar` would not find the
            sample as it is; nothing was written of it.
        System
            The disk is full, ...: the writer is closed, and nothing is left.
        Closed
        """
        if not isinstance(sample, Mapping) or not isinstance(sample.get("__key__"), str):
            raise InvalidArgument('give a dict with a str "__key__" and fields', "tar")
        fields = [
            (text(name, "tar"), text(value, "tar").encode() if isinstance(value, str) else value)
            for name, value in sample.items()
            if name != "__key__"
        ]
        self._native.write(text(sample["__key__"], "tar"), fields)

    @property
    def samples(self) -> int:
        """Samples so far."""
        return int(self._native.samples)


def example(features: dict[str, Any]) -> bytes:
    """Return the bytes of a tf.Example: a record for `TFRecordWriter`.

    Parameters
    ----------
    features : dict
        Name to value. Integers and bools become int64, and floats float32. An array of any shape
        becomes its values in C order. `bytes` become a byte string, `str` its UTF-8. A list or
        tuple of numbers is an array; one of `bytes` or `str` is a list of byte strings.

    Returns
    -------
    bytes
        Features are sorted by name, so equal dicts give equal bytes.

    Raises
    ------
    InvalidArgument
        A value has another type, or an integer does not fit into int64.

    Examples
    --------
    >>> penstock.example({"image": png, "label": 3, "box": np.zeros(4, np.float32)})
    """
    if not isinstance(features, dict):
        raise InvalidArgument(
            f"a {type(features).__name__}; give a dict of names and values", "example"
        )
    names = list(features)
    for name in names:
        text(name, "example")
    return bytes(_engine.example([(n, *_values(n, features[n])) for n in sorted(names)]))


def _values(name: str, value: Any) -> tuple[int, Any]:
    """A feature's type, and its values in the engine's form."""
    if isinstance(value, str):
        return _BYTES, [text(value, "example").encode()]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _BYTES, [value]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, bytes)):
        return _BYTES, [_string(name, item) for item in value]
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0, object)
    if isinstance(value, (list, tuple)) and array.size == 0 and array.dtype == np.float64:
        raise InvalidArgument(
            f'{name!r} is empty: give np.array([], dtype), with "S" for strings',
            "example",
        )
    if array.dtype.kind in "SU" and isinstance(value, (np.ndarray, np.generic)):
        return _BYTES, [_string(name, item) for item in array.reshape(-1).tolist()]
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return _FLOAT32, np.ascontiguousarray(array, np.float32).reshape(-1)
    if array.dtype.kind not in "iub":
        raise InvalidArgument(
            f"{name!r} is {_described(value)}; give bytes, numbers, or arrays or lists of them",
            "example",
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 1 << 63:
        raise InvalidArgument(f"{name!r} has {array.max()}, which is no int64", "example")
    return _INT64, np.ascontiguousarray(array, np.int64).reshape(-1)


def _string(name: str, item: Any) -> bytes:
    if isinstance(item, str):
        return text(item, "example").encode()
    if isinstance(item, bytes):
        return item
    raise InvalidArgument(f"{name!r} has strings and {_described(item)}", "example")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    text = repr(value)
    return f"{text[:60]}..." if len(text) > 64 else text
