"""The headers of .npy files, and of the arrays in .npz files. Nothing is ever unpickled."""

from __future__ import annotations

import ast
import math
import os
import re
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from .. import _engine
from ..base.remote import local_path
from ..errors import DataLoss, Error, InvalidArgument, NotFound, OutOfMemory, System

_MAGIC = b"\x93NUMPY"
_MOST_HEADER = 64 << 10  # of the text, which is parsed as Python's literals are
_PIECE = 1 << 20
_MOST_RATIO = 1032  # of deflate
_LOCAL = struct.Struct("<4s5H3L2H")  # in front of a file in a zip archive


@dataclass(frozen=True)
class Header:
    """What an .npy header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    raw: bytes  # all of it; the data follows

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Stored:
    """An array that lies in a file as it is in memory."""

    path: str
    name: str  # in the .npz; "": an .npy
    header: Header
    offset: int  # of the data
    file_bytes: int

    def rows_in_place(self) -> bool:
        """Whether the engine can read its rows one by one."""
        header = self.header
        row = math.prod(header.shape[1:]) * header.dtype.itemsize
        contiguous = not header.fortran or sum(n > 1 for n in header.shape) <= 1
        return 0 < row < 1 << 31 and contiguous and header.dtype.kind in "biufc"

    def arguments(self) -> tuple[Any, ...]:
        """As the engine's `file_rows` takes them."""
        header = self.header
        rows, *shape = header.shape
        return (
            self.path,
            self.name,
            header.dtype.name,
            shape,
            rows,
            not header.dtype.isnative,
            self.offset,
            header.raw,
            self.file_bytes,
        )

    def mapped(self) -> np.ndarray[Any, Any]:
        """The array over the file's pages."""
        header = self.header
        order: Any = "F" if header.fortran else "C"
        if header.nbytes == 0:
            return np.zeros(header.shape, header.dtype, order)
        return np.memmap(local_path(self.path), header.dtype, "r", self.offset, header.shape, order)


def open_npy(path: str) -> Stored:
    """The array of an .npy file, of which the header is read.

    Raises
    ------
    DataLoss
        It has no header, or is not as long as the header says.
    InvalidArgument
        It is an array of objects, or a single value.
    NotFound, System
    """
    with _opened(path, "npy") as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(file, path, "npy")
    _check_size(header, size, path, "npy")
    return Stored(path, "", header, len(header.raw), size)


def open_npz(path: str) -> dict[str, Stored | np.ndarray[Any, Any]]:
    """The arrays of an .npz file by their names; those that are compressed are read.

    Raises
    ------
    DataLoss
        The archive or an array in it is damaged, or sizes in it disagree.
    InvalidArgument
        There are no arrays, or one of objects; an encrypted one; an unknown compression.
    OutOfMemory
        An array that is compressed is larger than the memory there is.
    NotFound, System
    """
    arrays: dict[str, Stored | np.ndarray[Any, Any]] = {}
    with _opened(path, "npz") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if not member.filename.endswith(".npy"):
                        continue
                    name = member.filename[: -len(".npy")]
                    if name in arrays:
                        raise DataLoss(f"{path}: there are two arrays {name!r}", "npz")
                    arrays[name] = _member(path, file, size, archive, member)
        except Error:
            raise
        except Exception as why:  # of zipfile: what a damaged archive raises is many things
            raise DataLoss(f"{path}: {why}", "npz") from None
    if not arrays:
        raise InvalidArgument(f"{path} has no arrays in it", "npz")
    return arrays


def _member(
    path: str, file: IO[bytes], size: int, archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> Stored | np.ndarray[Any, Any]:
    where = f"{path}, {member.filename!r}"
    if member.flag_bits & 1:
        raise InvalidArgument(f"{where} is encrypted; write it without a password", "npz")
    begin = _data_of(file, member, where)
    if member.compress_size > size - begin:
        raise DataLoss(f"{where}: {member.compress_size} bytes do not fit at byte {begin}", "npz")
    if member.compress_type == zipfile.ZIP_STORED:
        if member.compress_size != member.file_size:
            raise DataLoss(
                f"{where} at byte {begin} is stored, and has {member.compress_size} bytes and "
                f"{member.file_size}",
                "npz",
            )
        file.seek(begin)
        header = _read_header(file, where, "npz")
        _check_size(header, member.file_size, where, "npz")
        return Stored(path, member.filename[: -len(".npy")], header, begin + len(header.raw), size)
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise InvalidArgument(
            f"{where} is compressed by method {member.compress_type}; "
            "write it by numpy.savez or numpy.savez_compressed",
            "npz",
        )
    if member.file_size > _MOST_RATIO * member.compress_size + 64:
        raise DataLoss(
            f"{where}: {member.compress_size} bytes cannot be {member.file_size} bytes inflated",
            "npz",
        )
    limit = _engine.memory_limit()
    if member.file_size > limit:
        raise OutOfMemory(
            f"{where} has {member.file_size:,} bytes, and there are {limit:,} of memory: arrays "
            "that numpy.savez wrote, without compression, are read in place",
            "npz",
        )
    with archive.open(member) as inflated:
        header = _read_header(inflated, where, "npz")
        _check_size(header, member.file_size, where, "npz")
        data = np.empty(header.nbytes, np.uint8)
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            if _read_into(inflated, piece) < len(piece):
                raise DataLoss(f"{where} ends before its {member.file_size} bytes", "npz")
        inflated.read(1)  # the checksum is looked at where it ends
    array = data.view(header.dtype) if header.nbytes else np.zeros(0, header.dtype)
    return array.reshape(header.shape, order="F" if header.fortran else "C")


def _data_of(file: IO[bytes], member: zipfile.ZipInfo, where: str) -> int:
    """The place of a member's data, by the header in front of it."""
    file.seek(member.header_offset)
    raw = file.read(_LOCAL.size)
    if len(raw) == _LOCAL.size and raw.startswith(b"PK\3\4"):
        *_, name, extra = _LOCAL.unpack(raw)
        written = file.read(name)
        if written in (member.orig_filename.encode(), _cp437(member.orig_filename)):
            return int(member.header_offset + _LOCAL.size + name + extra)
    raise DataLoss(f"{where}: no header at byte {member.header_offset}", "npz")


def _cp437(name: str) -> bytes:
    try:
        return name.encode("cp437")
    except UnicodeEncodeError:
        return b""


def _read_into(file: Any, to: np.ndarray[Any, Any]) -> int:
    done = 0
    while done < len(to):
        count = file.readinto(to.data[done:])
        if not count:
            break
        done += count
    return done


def _opened(path: str, operation: str) -> IO[bytes]:
    try:
        return open(local_path(path), "rb")
    except Error:
        raise
    except FileNotFoundError:
        raise NotFound(f"no such file: {path}", operation) from None
    except OSError as error:
        raise System(f"{path}: {error.strerror}", operation) from None


def _read_header(file: IO[bytes], where: str, operation: str) -> Header:
    def take(count: int) -> bytes:
        data = file.read(count)
        if len(data) < count:
            raise DataLoss(f"{where} ends within its header", operation)
        return data

    raw = take(8)
    if not raw.startswith(_MAGIC):
        raise DataLoss(f"{where} is no array: it does not begin as .npy does", operation)
    version = (raw[6], raw[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise DataLoss(f"{where}: version {raw[6]}.{raw[7]} of .npy is unknown", operation)
    length = take(2 if version == (1, 0) else 4)
    count = int.from_bytes(length, "little")
    if count > _MOST_HEADER:
        raise DataLoss(f"{where}: a header of {count} bytes at byte 8", operation)
    text = take(count)
    dtype, shape, fortran = _parsed(text, version, where, operation)
    return Header(dtype, shape, fortran, raw + length + text)


def _parsed(
    text: bytes, version: tuple[int, int], where: str, operation: str
) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """What the text of a header says: a dict, as Python writes it."""
    try:
        line = text.decode("utf-8" if version == (3, 0) else "latin1")
        if version < (3, 0):
            line = re.sub(r"(?<=[0-9])L(?=[,)\s])", "", line)  # of Python 2
        said = ast.literal_eval(line.strip())
        shape, fortran, descr = said["shape"], said["fortran_order"], said["descr"]
        if not (
            len(said) == 3
            and isinstance(fortran, bool)
            and isinstance(shape, tuple)
            and all(type(n) is int and n >= 0 for n in shape)
            and math.prod(shape) < 1 << 62
        ):
            raise ValueError("shape, order and dtype are expected")
        dtype = np.lib.format.descr_to_dtype(descr)
        if math.prod(shape) * dtype.itemsize >= 1 << 62:
            raise ValueError("it is too large")
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise DataLoss(f"{where}: its header is damaged: {error}", operation) from None
    if dtype.hasobject:
        raise InvalidArgument(
            f"{where} has Python objects, which only unpickling makes: that is never done here. "
            "Save arrays of numbers, or give the elements to Dataset.items",
            operation,
        )
    if not shape:
        raise InvalidArgument(f"{where} is a single value, which has no rows", operation)
    return dtype, shape, fortran


def _check_size(header: Header, size: int, where: str, operation: str) -> None:
    wanted = len(header.raw) + header.nbytes
    if size != wanted:
        raise DataLoss(
            f"{where} has {size} bytes; by its header, {header.dtype} of shape {header.shape}, "
            f"it has {wanted}",
            operation,
        )
