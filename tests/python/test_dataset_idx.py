"""IDX and CIFAR files: written rows are read back in every way; truncation is reported."""

from __future__ import annotations

import gzip
import re
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from contract import INLINE, PROCESSES, THREADS, check_checkpoints, each, options, passed
from penstock import Dataset

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array):
    """The bytes of an IDX file, by the format's description."""
    code = CODES[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def digits(begin, end):
    """Rows that contain their numbers, and their labels."""
    numbers = np.arange(begin, end)
    return (numbers[:, None, None] * 3 + np.arange(20).reshape(4, 5)).astype("u1"), numbers % 10


@pytest.fixture
def folder(tmp_path):
    for file, (begin, end) in enumerate(((0, 40), (40, 40), (40, 100))):
        images, labels = digits(begin, end)
        (tmp_path / f"images-{file}").write_bytes(idx(images))
        (tmp_path / f"labels-{file}").write_bytes(idx(labels.astype("u1")))
    return tmp_path


def pack_all(folder, pack):
    for path in folder.iterdir():
        path.write_bytes(pack(path.read_bytes()))


def check(batches, total=100):
    images, labels = digits(0, total)
    assert np.array_equal(np.concatenate([batch["image"] for batch in batches]), images)
    assert np.array_equal(np.concatenate([batch["label"] for batch in batches]), labels)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(CODES)),
    st.lists(st.integers(1, 4), max_size=5),
    st.integers(0, 9),
    st.sampled_from([bytes, gzip.compress, zlib.compress]),
    st.booleans(),
)
def test_rows_are_what_was_written_in_the_machines_byte_order(dtype, shape, rows, pack, stream):
    random = np.random.default_rng(rows)
    array = random.integers(0, 256, (rows, *shape, np.dtype(dtype).itemsize), np.uint8)
    array = array.view(dtype)[..., 0]  # random bits
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(pack(idx(array)))
        dataset = Dataset.idx(path, stream=stream)
        assert len(dataset) == rows
        got = [row for batch in dataset.batch(4) for row in batch]
    assert len(got) == rows
    for row, wanted in zip(got, array, strict=True):
        assert np.asarray(row).dtype == np.dtype(dtype)
        assert np.asarray(row).dtype.isnative
        assert np.asarray(row).tobytes() == wanted.tobytes()
        assert np.shape(row) == tuple(shape)


@each((INLINE, THREADS, PROCESSES), ())
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_images_come_with_their_labels(folder, mode, pack):
    pack_all(folder, pack)
    dataset = Dataset.idx(str(folder / "images-*"), folder / "labels-*")
    assert len(dataset) == 100
    with dataset.batch(16).build(**options(mode)) as feed:
        for _ in range(2):
            check(list(feed))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_place_restores(folder, pack):
    pack_all(folder, pack)
    dataset = Dataset.idx(str(folder / "images-*"), folder / "labels-*").batch(9)
    check_checkpoints(
        lambda **options: dataset.build(**options), INLINE, (INLINE, THREADS), count=1
    )


def test_what_is_behind_the_last_row_is_no_row(tmp_path):
    path = tmp_path / "x"
    more = idx(digits(0, 6)[0]) + bytes(20)
    path.write_bytes(more)
    with pytest.raises(penstock.DataLoss, match="20 more come at byte 136"):
        Dataset.idx(path).build()
    path.write_bytes(gzip.compress(more))
    with Dataset.idx(path).build(workers=0, on_error="skip") as feed:
        iterator = iter(feed)
        assert len([next(iterator) for _ in range(5)]) == 5
        with pytest.raises(penstock.DataLoss, match=r"record 5 at byte 116 .*more records than"):
            next(iterator)


def test_labels_of_other_images_are_refused(folder):
    images, labels = folder / "images-0", folder / "labels-2"
    says = re.escape(f"{labels} has 60 labels (byte 4) for the 40 rows of {images}")
    with pytest.raises(penstock.InvalidArgument, match=says):
        Dataset.idx(images, labels).build()
    pack_all(folder, gzip.compress)
    with pytest.raises(penstock.InvalidArgument, match=says):
        Dataset.idx(images, labels).build()
    with pytest.raises(penstock.InvalidArgument, match="3 files of images and 1 of labels"):
        Dataset.idx(str(folder / "images-*"), labels).build()
    with pytest.raises(penstock.InvalidArgument, match="only files of one kind"):
        Dataset.idx([images, labels]).build()
    with pytest.raises(penstock.InvalidArgument, match="empty"):
        Dataset.idx(images, [])
    with pytest.raises(penstock.NotFound):
        Dataset.idx(images, folder / "none").build()


# ---- CIFAR -----------------------------------------------------------------------------------


def cifar(path, total, coarse, pack=bytes):
    random = np.random.default_rng(total)
    images = random.integers(0, 256, (total, 3, 32, 32), np.uint8)
    labels = random.integers(0, 100 if coarse else 10, total, np.uint8)
    coarse_labels = random.integers(0, 20, total, np.uint8)
    columns = ([coarse_labels] if coarse else []) + [labels]
    rows = np.concatenate([*(c[:, None] for c in columns), images.reshape(total, -1)], 1)
    path.write_bytes(pack(rows.tobytes()))
    wanted = {"image": images, "label": labels}
    return {**wanted, "coarse_label": coarse_labels} if coarse else wanted


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("coarse", [False, True])
def test_cifar_is_planes_and_labels(tmp_path, coarse, pack):
    wanted = cifar(tmp_path / "x.bin", 50, coarse, pack)
    make = Dataset.cifar100 if coarse else Dataset.cifar10
    (batch,) = make(tmp_path / "x.bin").batch(64)
    assert list(batch) == list(wanted)
    for name, array in wanted.items():
        assert batch[name].dtype == np.uint8
        assert np.array_equal(batch[name], array)


def test_cifar_that_is_something_else_is_said(tmp_path):
    path = tmp_path / "x.bin"
    cifar(path, 5, True)
    with pytest.raises(penstock.DataLoss, match=r"cifar10: .*5 are left over at byte 15365"):
        Dataset.cifar10(path).build()
    path.write_bytes(bytes([200]) * 3074)
    with pytest.raises(penstock.DataLoss, match=r"record 0 at byte 0 .* is 200 and not below 100"):
        passed(Dataset.cifar100(path))
    for pack in (bytes, gzip.compress):
        cifar(path, 2, False)
        whole = path.read_bytes()
        for end in (*range(1, 3073, 256), *range(3074, 6146, 256)):
            path.write_bytes(pack(whole[:end]))
            with pytest.raises(penstock.DataLoss, match="left over"):
                passed(Dataset.cifar10(path))
