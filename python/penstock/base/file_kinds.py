"""The formats of files, by their names."""

from __future__ import annotations

import os
import re

from ..errors import InvalidArgument
from .remote import is_url, without_query

# The first bytes of a file of `Dataset.cache(path)`.
_SNAPSHOT = b"PSTKSNP1"
# Ends of names that say a format that is not written.
_NOT_WRITTEN = (
    *(".arrow", ".csv", ".feather", ".json", ".jsonl", ".mat", ".orc", ".pickle", ".pkl", ".pt"),
    *(".pth", ".tsv", ".txt", ".xlsx", ".zip"),
)
# Classes by the size of a record: labels, and an image of 3 x 32 x 32.
_CIFAR_RECORDS = {3073: 10, 3074: 100}
_IDX_NAME = re.compile(r"(\.idx|[-.]idx\d+-\w+)(\.gz)?$")


def is_tar(path: str) -> bool:
    """Whether a file is a tar archive, by its name."""
    return without_query(path).lower().endswith((".tar", ".tar.gz", ".tgz"))


def is_parquet(path: str) -> bool:
    """Whether a file is a Parquet file, by its name."""
    return without_query(path).lower().endswith((".parquet", ".pq"))


def is_hdf5_file(path: str) -> bool:
    """Whether a file is an HDF5 file, by its name."""
    return without_query(path).lower().endswith((".h5", ".hdf5"))


def is_idx(path: str) -> bool:
    """Whether a file is an IDX file, by its name: ``x.idx``, ``train-images-idx3-ubyte``."""
    return _IDX_NAME.search(path.lower()) is not None


def is_snapshot(path: str) -> bool:
    """Whether a file is one of `Dataset.cache(path)`, by its first bytes; its name may be any."""
    if is_url(path) or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(_SNAPSHOT)) == _SNAPSHOT
    except OSError:  # its reader raises the error
        return False


def cifar_classes(path: str) -> int:
    """10 or 100 of a local file of CIFAR, by its name, ``.bin``, and its size; 0 of others."""
    if not path.lower().endswith(".bin") or not os.path.isfile(path):
        return 0
    size = os.path.getsize(path)
    kinds = (classes for record, classes in _CIFAR_RECORDS.items() if size % record == 0)
    return next(kinds, 0) if size else 0


def kind_of(path: str) -> str:
    """The kind of an output, by its name.

    "tar", "parquet", "npy", "npz", "idx", "hdf5" or "tfrecord".

    Raises
    ------
    InvalidArgument
        The name says a format that is not written.
    """
    if is_tar(path):
        return "tar"
    if is_parquet(path):
        return "parquet"
    if is_idx(path):
        return "idx"
    for kind in ("npy", "npz"):
        if path.lower().endswith(f".{kind}"):
            return kind
    if is_hdf5_file(path):
        return "hdf5"
    if path.lower().removesuffix(".gz").endswith(_NOT_WRITTEN):
        raise InvalidArgument(
            f"{path} is not named as a format that is written: .tfrecord, .tar, .parquet, .npy, "
            ".npz, .idx or .h5",
            "write",
        )
    return "tfrecord"
