"""Passes over arrays (npy, npz, IDX, HDF5, CIFAR), images and snapshots: as a Dataset reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .. import _engine
from ..base.file_kinds import cifar_classes, is_idx, is_snapshot
from ..base.remote import local_path, without_query
from ..dataset.dataset import Dataset
from ..errors import DataLoss, InvalidArgument
from . import size_of
from .passes import FilePass

# Losses of one file that are listed; all are counted.
_MOST_LISTED = 10_000


class Pass(FilePass):
    """A pass over what a Dataset reads when it is made, or over every row and image."""

    def run(self) -> dict[str, Any]:
        """Make the pass.

        Raises
        ------
        NotFound, System, InvalidArgument
            The file cannot be read, or holds nothing that can be fed. Damage is no error.
        """
        found = self._found
        found["file_bytes"] = size = size_of(self._path)
        try:
            dataset, found["call"] = _opened(self._path)
            count = dataset.cardinality()
            found["columns"] = _columns_of(dataset) if count else {}
        except DataLoss as error:
            self._lose(0, 0, size, _without(self._path, error))
            return found
        found["records"] = count
        if self._read:
            self._verify(dataset, count)
        return found

    def _verify(self, dataset: Dataset, count: Any) -> None:
        found = self._found
        try:
            with dataset.build(workers=0, on_error="skip") as feed:
                sound = 0
                for _ in feed:
                    sound += 1
                    self.bytes = int(2 * found["file_bytes"] * sound / max(count, 1))
                    if self._stopped:
                        return
                stats = feed.stats()
        except DataLoss as error:  # of the file's remaining rows
            found["records"] = 0
            self._lose(0, 0, 0, _without(self._path, error))
            return
        found["records"] = sound
        found["lost_places"] = stats["skipped"]
        for _, record, why in stats["losses"][:_MOST_LISTED]:
            self._list(record, 0, 0, why)


def _opened(path: str) -> tuple[Dataset, str]:
    """The Dataset of a path, and the call that a user writes."""
    name = without_query(path).lower()
    shown = _engine.without_secrets(path)
    if is_snapshot(path):
        return Dataset.snapshot(path), f'penstock.Dataset.snapshot("{shown}")'
    if name.endswith(".npy"):
        return Dataset.npy(path), f'penstock.Dataset.npy("{shown}")'
    if name.endswith(".npz"):
        return Dataset.npz(path), f'penstock.Dataset.npz("{shown}")'
    if is_idx(without_query(path)):
        return Dataset.idx(path), f'penstock.Dataset.idx("{shown}")'
    classes = cifar_classes(path)
    if classes:
        dataset = cifar(classes)(path)
        return dataset, f'penstock.Dataset.cifar{classes}("{shown}")'
    return _hdf5(path, shown) if not os.path.isdir(path) else _images(path, shown)


def cifar(classes: int) -> Callable[..., Dataset]:
    """The source of files of CIFAR-10 or CIFAR-100."""
    return Dataset.cifar10 if classes == 10 else Dataset.cifar100


def _hdf5(path: str, shown: str) -> tuple[Dataset, str]:
    names, _ = hdf5_columns(path)
    return Dataset.hdf5(path, names), f'penstock.Dataset.hdf5("{shown}", {names})'


def hdf5_columns(path: str) -> tuple[dict[str, str], dict[str, int]]:
    """The data sets with as many rows as most have, by their names; and the rows of the others.

    Raises
    ------
    InvalidArgument
        h5py is not installed, or no data set has rows.
    DataLoss
        The file is damaged, or no HDF5 file.
    """
    shown = _engine.without_secrets(path)
    try:
        import h5py
    except ImportError as error:
        raise InvalidArgument("HDF5 files need h5py: pip install h5py", "hdf5") from error
    rows: dict[str, int] = {}

    def add(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.shape:
            rows[name] = found.shape[0]

    try:
        with h5py.File(local_path(path), "r") as file:
            file.visititems(add)
    except (OSError, RuntimeError) as error:
        raise DataLoss(f"{shown} is no HDF5 file, or it is damaged: {error}", "hdf5") from None
    if not rows:
        raise InvalidArgument(f"{shown} has no data set with rows", "hdf5")
    lengths = list(rows.values())
    length = max(lengths, key=lengths.count)
    names = {name: name for name, count in rows.items() if count == length}
    return names, {name: count for name, count in rows.items() if count != length}


def _images(path: str, shown: str) -> tuple[Dataset, str]:
    from .. import image

    dataset = Dataset.image_folder(path).map(image.decode())
    call = f'penstock.Dataset.image_folder("{shown}").map(penstock.image.decode())'
    return dataset, call


def _columns_of(dataset: Dataset) -> dict[str, str]:
    spec = dataset.element_spec
    named = spec.items() if isinstance(spec, dict) else [("", spec)]
    return {name or "-": _type_of(each) for name, each in named}


def _type_of(spec: Any) -> str:
    """``float32 (2,)``, ``str``; None in a shape: the length varies."""
    shape, dtype = getattr(spec, "shape", ()), getattr(spec, "dtype", None)
    if dtype is None:
        return str(spec)
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return f"{text} {shape}" if shape else str(text)


def _without(path: str, error: Exception) -> str:
    text = str(error).removeprefix(f"{getattr(error, 'operation', '')}: ")
    return text.removeprefix(_engine.without_secrets(path)).lstrip(":, ")
