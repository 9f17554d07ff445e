"""HDF5 files: rows are what h5py reads, in any storage, order and number of workers."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

import penstock
from contract import FAST, INLINE, THREADS, Mode, check_checkpoints, each, options
from penstock import Dataset

h5py = pytest.importorskip("h5py")

ROWS = 50
STORAGE = {
    "in one piece": {},
    "chunks": {"chunks": (7, 3, 4)},
    "chunks across": {"chunks": (5, 2, 3)},
    "chunks larger than the array": {"chunks": (64, 8, 8), "maxshape": (None, None, None)},
    "gzip": {"chunks": (7, 3, 4), "compression": "gzip"},
    "gzip across": {"chunks": (4, 2, 3), "compression": "gzip", "compression_opts": 1},
    "gzip, shuffle": {"chunks": (7, 3, 4), "compression": "gzip", "shuffle": True},
    "all filters": {
        "chunks": (7, 2, 4), "compression": "gzip", "shuffle": True, "fletcher32": True,
    },
    "checksums alone": {"chunks": (7, 3, 4), "fletcher32": True},
}  # fmt: skip
DTYPES = ("u1", "i2", ">i4", "<i8", "f2", ">f4", "f8", ">c8", "?")


def values(dtype, shape=(ROWS, 3, 4)):
    raw = np.random.default_rng(3).integers(0, 200, shape)
    return (raw % 2 == 0) if dtype == "?" else raw.astype(dtype)


def file_with(path, **arrays):
    """Write arrays, each with its options; return the path."""
    with h5py.File(path, "w") as file:
        for name, (array, more) in arrays.items():
            file.create_dataset(name, data=array, **more)
    return path


@pytest.fixture
def gzipped(tmp_path):
    more = {"chunks": (7, 3, 4), "compression": "gzip", "fletcher32": True}
    labels = np.arange(ROWS, dtype=np.int64)
    return file_with(tmp_path / "x.h5", X=(values("u1"), more), Y=(labels, {"chunks": (16,)}))


def native(dataset):
    return repr(dataset).startswith("hdf5(") and not dataset._any_built().python


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_that_h5py_reads(tmp_path, storage, dtype):
    wanted = values(dtype)
    dataset = Dataset.hdf5(file_with(tmp_path / "x.h5", X=(wanted, STORAGE[storage])), "X")
    assert native(dataset)
    assert len(dataset) == ROWS
    rows = list(dataset.build(workers=0))
    assert all(row.dtype == np.dtype(dtype).newbyteorder("=") for row in rows)
    assert np.array_equal(np.stack(rows), wanted)
    shuffled = dataset.shuffle(seed=2).batch(8)
    with h5py.File(tmp_path / "x.h5") as file:
        order = [int(i) for i in Dataset.range(ROWS).shuffle(seed=2)]
        assert np.array_equal(np.concatenate(list(shuffled)), file["X"][:][order])


@each()
def test_several_data_sets_are_one_element_for_any_workers(gzipped, mode):
    x, y = values("u1"), np.arange(ROWS)
    dataset = Dataset.hdf5(gzipped, {"x": "X", "y": "Y"}).shuffle(seed=1).batch(8)
    with dataset.build(**options(mode)) as feed:
        for _ in range(2):
            batches = list(feed)
            numbers = np.concatenate([batch["y"] for batch in batches])
            assert sorted(numbers) == list(y)
            assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), x[numbers])


def test_single_values_and_nests(tmp_path):
    more = {"chunks": (6,), "compression": "gzip"}
    path = file_with(tmp_path / "x.h5", a=(np.arange(20.0), more), b=(np.arange(20), {}))
    assert list(Dataset.hdf5(path, ("a", ("b",))))[3] == (3.0, (3,))
    with h5py.File(path) as file:
        assert [float(v) for v in Dataset.hdf5(file, "a").take(3)] == [0, 1, 2]
        assert [int(v) for v in Dataset.arrays(file["b"]).take(2)] == [0, 1]
        assert [float(v) for v in Dataset.source(file["a"]).take(2)] == [0, 1]


def test_it_goes_on_exactly_at_every_batch(gzipped):
    dataset = Dataset.hdf5(gzipped, {"x": "X", "y": "Y"})
    for chain in (dataset.shuffle(seed=4, block=7, window=3).batch(6), dataset.batch(9)):
        check_checkpoints(
            lambda chain=chain, **o: chain.build(**{"use_multiprocessing": False, **o}),
            restored=(INLINE, THREADS, Mode(2, "fork")),
        )


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        x = file.create_dataset(
            "X", (30, 4), ">i4", chunks=(8, 4), fillvalue=-7, compression="gzip"
        )
        x[8:16] = 5
        y = file.create_dataset("Y", (30,), "f4", fillvalue=2.5)
        file.create_dataset("Z", (30, 2), "i8", chunks=(10, 2))
        wanted = x[:], y[:]
    dataset = Dataset.hdf5(tmp_path / "x.h5", ("X", "Y", "Z"))
    assert native(dataset)
    ((x, y, z),) = list(dataset.batch(30))
    assert np.array_equal(x, wanted[0])
    assert np.array_equal(y, wanted[1])
    assert not z.any()


def test_what_was_written_to_an_open_file_is_read(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        x = file.create_dataset("X", (20, 3), chunks=(5, 3), compression="gzip")
        x[:] = 4
        assert all((row == 4).all() for row in Dataset.hdf5(file, "X"))


@pytest.mark.parametrize("kind", ["text", "compound", "lzf", "scaled"])
def test_h5py_reads_what_the_engine_does_not(tmp_path, kind):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if kind == "text":
            file.create_dataset("X", data=[b"one", b"two", b"three"], dtype="S5")
        elif kind == "compound":
            file["X"] = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
        elif kind == "lzf":
            file.create_dataset("X", data=values("f4"), chunks=(7, 3, 4), compression="lzf")
        else:
            file.create_dataset("X", data=values("i4"), chunks=(7, 3, 4), scaleoffset=0)
    dataset = Dataset.hdf5(tmp_path / "x.h5", {"x": "X"})
    assert not native(dataset)
    if kind == "compound":
        with pytest.raises(penstock.errors.InvalidArgument), dataset.build(workers=0) as feed:
            list(feed)
        return
    with dataset.build(workers=2, start_method="fork") as feed:
        rows = [element["x"] for element in feed]
    with h5py.File(tmp_path / "x.h5") as file:
        wanted = file["X"][:]
    assert [bytes(row) for row in rows] == [bytes(row) for row in wanted]


def test_a_file_that_is_open_for_writing_says_so(tmp_path):
    """In SWMR mode it is fed from an open data set, as the text says."""
    path = tmp_path / "x.h5"
    write = (
        "import h5py, sys; file = h5py.File(sys.argv[1], 'w', libver='latest');"
        "file.create_dataset('X', data=range(9), chunks=(4,), maxshape=(None,));"
        "sys.argv[2] == 'swmr' and setattr(file, 'swmr_mode', True);"
        "print('open', flush=True); sys.stdin.readline()"
    )
    for mode in ("swmr", "plain"):
        command = [sys.executable, "-c", write, str(path), mode]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as writer:
            assert writer.stdout.readline() == "open\n"
            with pytest.raises(penstock.errors.System, match="open for writing"):
                Dataset.hdf5(path, "X")
            if mode == "swmr":
                with h5py.File(path, "r", swmr=True) as file:
                    assert [int(row) for row in Dataset.arrays(file["X"])] == list(range(9))
            writer.communicate("\n")


def test_several_files_are_refused_with_the_way_to_join_them(tmp_path):
    with pytest.raises(penstock.errors.InvalidArgument, match="concatenate"):
        Dataset.hdf5([tmp_path / "x.h5", tmp_path / "y.h5"], "X")


def test_an_open_file_with_a_link_that_leads_nowhere_is_refused_by_name(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = np.arange(3)
        file["gone"] = h5py.SoftLink("/nowhere")
        file["away"] = h5py.ExternalLink("none.h5", "X")
        with pytest.raises(penstock.errors.InvalidArgument, match=r"{'X': 'X'}"):
            Dataset.arrays(file)


# ---- an open data set, where other data sets go --------------------------------------------------


@each(fast=(*FAST[:4], Mode(2, "fork")), slow=())
def test_a_loader_feeds_open_data_sets_from_their_file(gzipped, mode):
    with h5py.File(gzipped) as file:
        source = (file["X"], file["Y"])
        arrays = (values("u1"), np.arange(ROWS, dtype=np.int64))
        more = {"batch_size": 8, "shuffle": True, "seed": 5, "drop_last": True}
        with (
            penstock.Loader(source, **more, **mode.options) as feed,
            penstock.Loader(arrays, **more, workers=0) as wanted,
        ):
            assert len(feed) == len(wanted) == 6
            for _ in range(2):
                got, want = list(feed), list(wanted)
                assert len(got) == len(want)
                for (x, y), (wx, wy) in zip(got, want, strict=True):
                    assert np.array_equal(x, wx)
                    assert np.array_equal(y, wy)


def test_a_loader_never_reads_the_data_set_as_a_whole(gzipped, monkeypatch):
    with h5py.File(gzipped) as file:
        source = {"x": file["X"], "y": file["Y"]}
        read = h5py.Dataset.__getitem__

        def refuse(self, key, **more):
            raise AssertionError(f"read {key!r} through h5py")

        monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
        monkeypatch.setattr(h5py.Dataset, "__array__", refuse)
        with penstock.Loader(source, batch_size=8, workers=2) as feed:
            rows = np.concatenate([batch["x"] for batch in feed])
        monkeypatch.setattr(h5py.Dataset, "__getitem__", read)
    assert np.array_equal(rows, values("u1"))


def test_single_rows_and_collate_read_through_h5py(gzipped):
    with h5py.File(gzipped) as file:
        with penstock.Loader(file["Y"], workers=2) as feed:
            assert [int(y) for y in feed] == list(range(ROWS))
        with penstock.Loader(file["Y"], batch_size=10, collate=sum, workers=0) as feed:
            assert [int(y) for y in feed] == [sum(range(i, i + 10)) for i in range(0, ROWS, 10)]
        with penstock.Loader(
            file["Y"], workers=2, use_multiprocessing=True, start_method="fork"
        ) as feed:
            assert [int(y) for y in feed] == list(range(ROWS))


# ---- refused, and damaged ------------------------------------------------------------------------


def test_wrong_arguments_say_what_to_do(tmp_path, gzipped):
    refused = penstock.errors.InvalidArgument
    with pytest.raises(refused, match=r"has no data set 'Z'; it has X, Y"):
        Dataset.hdf5(gzipped, "Z")
    with pytest.raises(refused, match="name of a data set"):
        Dataset.hdf5(gzipped, {"x": 3})
    with h5py.File(gzipped, "r+") as file:
        file["short"] = np.arange(3)
        file["single"] = 3.0
        with pytest.raises(refused, match="equally many rows"):
            Dataset.hdf5(file, ("X", "short"))
        with pytest.raises(refused, match="equally many rows"):
            Dataset.hdf5(file, "single")
        with pytest.raises(refused, match="others of that file"):
            penstock.Loader((file["X"], np.arange(ROWS)), batch_size=2)
        other = file_with(tmp_path / "other.h5", Y=(np.arange(ROWS), {}))
        with h5py.File(other) as another, pytest.raises(refused, match="are of one file"):
            penstock.Loader((file["X"], another["Y"]), batch_size=2)


@pytest.mark.parametrize(
    "feed",
    [
        Dataset.arrays,
        Dataset.items,
        Dataset.source,
        lambda file: Dataset.arrays({"x": file}),
        lambda file: penstock.Loader(file, batch_size=2),
    ],
)
def test_the_error_for_an_open_file_has_the_call_that_feeds_it(tmp_path, feed):
    path = file_with(tmp_path / "x.h5", X=(np.arange(6), {}), **{"g/Y": (np.arange(6), {})})
    refused = penstock.errors.InvalidArgument
    with h5py.File(path) as file:
        for group, wanted in ((file, np.arange(6)), (file["g"], np.arange(6))):
            with pytest.raises(refused, match="is no data set: name those") as raised:
                feed(group)
            call = str(raised.value)[str(raised.value).index("penstock.Dataset") :]
            rows = eval(call, {"penstock": penstock})
            assert [next(iter(row.values())) for row in rows] == wanted.tolist()
    with pytest.raises(refused, match="the HDF5 file is closed"):
        feed(file)


@pytest.mark.parametrize("storage", ["gzip", "gzip, shuffle", "all filters", "checksums alone"])
@pytest.mark.parametrize("dtype", ["u1", ">i4", "f8"])
def test_batches_of_whole_chunks_are_the_same_with_any_cache(tmp_path, storage, dtype):
    wanted = values(dtype)
    path = file_with(tmp_path / "x.h5", X=(wanted, STORAGE[storage]))
    for cache_bytes in (1, 3 * wanted[:7].nbytes, 1 << 20):
        for rows in (7, 14, 5):
            dataset = Dataset.hdf5(path, "X", cache_bytes=cache_bytes)
            batches = list(dataset.batch(rows).repeat(2).build(workers=0))
            assert np.array_equal(np.concatenate(batches), np.concatenate([wanted, wanted]))


def place_of_chunk(path, number):
    with h5py.File(path) as file:
        about = file["X"].id.get_chunk_info(number)
    return about.byte_offset, about.size


# 7 rows are one chunk, which is decoded in the batch itself where the cache has no space for it.
@pytest.mark.parametrize("cache", [{}, {"cache_bytes": 1}])
@pytest.mark.parametrize("rows", [7, 10])
@pytest.mark.parametrize("where", ["front", "middle", "checksum"])
def test_a_damaged_chunk_costs_its_own_rows(gzipped, where, rows, cache):
    offset, size = place_of_chunk(gzipped, 2)
    at = offset + {"front": 0, "middle": size // 2, "checksum": size - 1}[where]
    data = bytearray(gzipped.read_bytes())
    data[at] ^= 0x5A
    gzipped.write_bytes(data)
    batches = Dataset.hdf5(gzipped, ("X", "Y"), **cache).batch(rows)
    with (
        batches.build(workers=2, use_multiprocessing=False) as feed,
        pytest.raises(penstock.errors.DataLoss, match=rf"{gzipped}: chunk 2 of '/X', at byte"),
    ):
        list(feed)
    with batches.build(workers=2, on_error="skip", use_multiprocessing=False) as feed:
        numbers = np.concatenate([y for _, y in feed])
        lost = [loss[1] for loss in feed.stats()["losses"]]
    assert sorted(lost) == list(range(14, 21))
    assert sorted([*numbers, *lost]) == list(range(ROWS))


def test_a_file_that_was_cut_or_replaced_is_data_loss(gzipped, tmp_path):
    dataset = Dataset.hdf5(gzipped, "X")
    kept = shutil.copy(gzipped, tmp_path / "kept.h5")
    with open(gzipped, "r+b") as file:
        file.truncate(place_of_chunk(kept, 3)[0] + 1)
    with pytest.raises(penstock.errors.DataLoss, match=str(gzipped)):
        list(dataset.build(workers=0))
    dataset = Dataset.hdf5(kept, "X")
    shutil.copy(gzipped, tmp_path / "other.h5")
    (tmp_path / "other.h5").rename(kept)
    with pytest.raises(penstock.errors.DataLoss, match=r"kept\.h5"):
        list(dataset.build(workers=0))


def test_a_file_that_cannot_be_opened_is_an_error_with_its_name(tmp_path):
    with pytest.raises(penstock.NotFound, match=r"no such file: .*absent\.h5"):
        Dataset.hdf5(tmp_path / "absent.h5", "x")
    (tmp_path / "bad.h5").write_bytes(b"garbage" * 100)
    with pytest.raises(penstock.DataLoss, match=r"bad\.h5 is no HDF5 file"):
        Dataset.hdf5(tmp_path / "bad.h5", "x")
    with pytest.raises(penstock.System, match="directory"):
        Dataset.hdf5(tmp_path, "x")
    with h5py.File(tmp_path / "cut.h5", "w") as file:
        file["x"] = np.arange(5000)
    whole = (tmp_path / "cut.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(penstock.DataLoss, match=r"cut\.h5 is no HDF5 file, or.*truncated"):
        Dataset.hdf5(tmp_path / "cut.h5", "x")


def test_a_filter_that_is_not_installed_is_named(tmp_path):
    path = tmp_path / "x.h5"

    def make(skipped):
        with h5py.File(path, "w") as file:
            create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            create.set_chunk((4, 3))
            create.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (1, 2))
            space = h5py.h5s.create_simple((8, 3))
            data = h5py.h5d.create(file.id, b"X", h5py.h5t.NATIVE_INT32, space, create)
            for row in (0, 4):
                values = np.arange(row * 3, row * 3 + 12, dtype="i4")
                data.write_direct_chunk((row, 0), values.tobytes(), skipped)

    make(skipped=0)
    why = r"x\.h5: '/X' is compressed by HDF5's filter 32001, which is not installed.*hdf5plugin"
    with pytest.raises(penstock.InvalidArgument, match=why):
        Dataset.hdf5(path, "X")
    make(skipped=1)  # an optional filter that the writer did not have, either
    assert np.array_equal(np.stack(list(Dataset.hdf5(path, "X"))), np.arange(24).reshape(8, 3))


@pytest.mark.filterwarnings("ignore")
def test_any_changed_bytes_are_typed_errors_or_rows(tmp_path):
    """Of h5py's part, which finds the data sets, and of the engine's."""
    more = {"chunks": (4, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=np.arange(60, dtype="i4").reshape(20, 3), **more)
        file["Y"] = np.arange(20)
        file.create_dataset("text", data=[b"ab"] * 20)
    whole = (tmp_path / "x.h5").read_bytes()
    random = np.random.default_rng(0)
    kinds = set()
    for number in range(150):
        damaged = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            damaged[at] = random.integers(256)
        if number % 5 == 0:
            del damaged[random.integers(len(whole)) :]
        path = tmp_path / f"{number}.h5"
        path.write_bytes(damaged)
        for names in (("X", "Y"), ("text",)):
            try:
                dataset = Dataset.hdf5(path, names)
            except penstock.Error as error:
                kinds.add(type(error))
                continue
            with dataset.on_error("skip").build(workers=0) as feed:
                count = len(list(feed))
                stats = feed.stats()
            assert count + stats["skipped"] == len(dataset)
            for _, _, reason in stats["losses"]:
                assert str(path) in reason
        path.unlink()
    assert penstock.DataLoss in kinds


def test_blocks_of_a_shuffle_are_the_chunks(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(95), chunks=(10,), compression="gzip")
        file["plain"] = np.arange(95)
    chain = Dataset.hdf5(tmp_path / "x.h5", "x").shuffle(seed=2, block="auto", window=1)
    order = np.array(list(chain))
    assert sorted(order) == list(range(95))
    chunks = order // 10
    assert len(np.flatnonzero(np.diff(chunks))) == 9  # one after the other
    assert list(dict.fromkeys(chunks)) != list(range(10))
    with pytest.raises(penstock.InvalidArgument, match="no blocks of its own"):
        list(Dataset.hdf5(tmp_path / "x.h5", "plain").shuffle(seed=2, block="auto"))


def test_blocks_stay_behind_what_cuts_and_joins(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(95), chunks=(10,), compression="gzip")
        file.create_dataset("y", data=np.arange(95, 120), chunks=(7,), compression="gzip")
    x, y = (Dataset.hdf5(tmp_path / "x.h5", name) for name in "xy")
    chunk_of = np.concatenate([np.arange(95) // 10, 10 + np.arange(25) // 7])
    cut = {
        "skip": (x.skip(13), range(13, 95)),
        "take": (x.take(42), range(42)),
        "to the end of a chunk": (x.skip(20).take(30), range(20, 50)),
        "nothing": (x.take(0), range(0)),
        "beyond the end": (x.skip(90).take(70), range(90, 95)),
        "concatenate": (x.skip(3).concatenate(y.take(11)), [*range(3, 95), *range(95, 106)]),
        "map": (x.take(42).map(penstock.cast("int32")), range(42)),
        "empty parts": (x.take(0).concatenate(y).concatenate(x.skip(95)), range(95, 120)),
    }
    for name, (chain, rows) in cut.items():
        order = np.array(list(chain.shuffle(seed=3, block="auto")), int)
        assert sorted(order) == list(rows), name
        chunks = chunk_of[order]
        assert np.count_nonzero(np.diff(chunks)) == max(len(set(chunks)) - 1, 0), name
    for chain in (x.shard(0, 2), x.shuffle(seed=1), x.concatenate(Dataset.range(5))):
        with pytest.raises(penstock.InvalidArgument, match="but before shard and other shuffles"):
            list(chain.shuffle(block="auto"))
