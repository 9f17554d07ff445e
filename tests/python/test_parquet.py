"""Parquet files: elements are what pyarrow reads, in any order and with any workers."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import penstock
from arrow_tables import columns, same, whole
from contract import (
    INLINE,
    PROCESSES,
    SPAWN,
    THREADS,
    assert_same,
    check_checkpoints,
    each,
    options,
)
from penstock import Dataset
from penstock.errors import DataLoss, InvalidArgument, NotFound

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 200
# pyarrow cannot write this type.
UNWRITABLE = "coded_lists"


def texts(rows):
    return [f"text {i}" * (i % 4) for i in rows]


def table_of(begin, end):
    numbers = np.arange(begin, end)
    return pa.table(
        {
            "n": numbers,
            "x": numbers.astype(np.float32) / 2,
            "raw": pa.array([text.encode() for text in texts(numbers)], pa.binary()),
            "text": pa.array(texts(numbers), pa.string()),
            "list": pa.array([list(range(i % 5)) for i in numbers], pa.list_(pa.int64())),
        }
    )


def rows_of(numbers):
    """The elements of `table_of`."""
    return [
        {
            "n": np.int64(n),
            "x": np.float32(n / 2),
            "raw": text.encode(),
            "text": text,
            "list": np.arange(n % 5),
        }
        for n, text in zip(numbers, texts(numbers), strict=True)
    ]


@pytest.fixture
def files(tmp_path):
    """Three files of 90, 60 and 50 rows, in row groups of 40, 25 and 50."""
    for name, begin, end, size in (("a", 0, 90, 40), ("b", 90, 150, 25), ("c", 150, ROWS, 50)):
        pq.write_table(table_of(begin, end), tmp_path / f"{name}.parquet", row_group_size=size)
    return tmp_path / "*.parquet"


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(columns(1).keys() - {UNWRITABLE}))
def test_every_type_gives_the_values_of_what_pyarrow_reads(tmp_path, name):
    column, values = columns()[name]
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", row_group_size=20)
    got = list(Dataset.parquet(tmp_path / "x.parquet"))
    same(got, list(Dataset.arrow(pq.read_table(tmp_path / "x.parquet"))))
    if name == "date64":  # stored as days
        values = [value // 86_400_000 for value in values]
    same(got, [{"x": value} for value in values])


def test_rows_are_nests_of_all_columns(tmp_path):
    table, rows = whole()
    table = table.drop_columns([UNWRITABLE, "date64"])
    rows = [{k: v for k, v in row.items() if k in table.column_names} for row in rows]
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=7)
    dataset = Dataset.parquet(tmp_path / "x.parquet")
    assert len(dataset) == len(rows)
    same(list(dataset), rows)
    picked = Dataset.parquet(tmp_path / "x.parquet", columns=["struct/in/t", "int8"])
    wanted = [{"struct": {"in": {"t": row["string"]}}, "int8": row["int8"]} for row in rows]
    same(list(picked), wanted)


def test_files_are_one_range_of_rows(files, tmp_path):
    dataset = Dataset.parquet(files)
    assert len(dataset) == ROWS
    assert repr(dataset) == "parquet(a.parquet and 2 more, 200)"
    same(list(dataset), rows_of(range(ROWS)))
    some = Dataset.parquet([tmp_path / "c.parquet", str(tmp_path / "a.parquet")], ["text", "n"])
    assert [int(row["n"]) for row in some] == [*range(150, 200), *range(90)]
    assert list(next(iter(some))) == ["text", "n"]


def test_only_the_chosen_columns_are_decoded(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(table_of(0, 50), path, compression="none", use_dictionary=False)
    place = pq.read_metadata(path).row_group(0).column(2)
    data = bytearray(path.read_bytes())
    data[place.data_page_offset : place.data_page_offset + 16] = b"\xff" * 16
    path.write_bytes(data)
    with pytest.raises(DataLoss):
        list(Dataset.parquet(path, ["raw"]))
    assert [int(row["n"]) for row in Dataset.parquet(path, ["n", "x"])] == list(range(50))


def test_files_without_rows_and_empty_row_groups(tmp_path):
    pq.write_table(table_of(0, 0), tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", table_of(0, 0).schema) as writer:
        for begin, end in ((0, 3), (3, 3), (3, 4), (4, 4)):
            writer.write_table(table_of(begin, end))
    assert list(Dataset.parquet(tmp_path / "a.parquet")) == []
    both = Dataset.parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    same(list(both), rows_of(range(4)))
    same(list(both.shuffle(seed=1).take(0)), [])


def test_nulls_by_policy(tmp_path):
    table = pa.table({"x": [1.5, None, 2.5, None], "s": ["a", "b", None, "d"]})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, row_group_size=2)
    filled = Dataset.parquet(path, nulls={"x": -1.0, "s": ""})
    assert [(float(r["x"]), r["s"]) for r in filled] == [
        (1.5, "a"), (-1, "b"), (2.5, ""), (-1, "d"),
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match=rf"{path}: 'x', row 1 is null"):
        list(Dataset.parquet(path))
    with Dataset.parquet(path).build(workers=2, on_error="skip") as feed:
        assert [float(r["x"]) for r in feed] == [1.5]
        assert sorted(loss[1] for loss in feed.stats()["losses"]) == [1, 2, 3]
    with pytest.raises(InvalidArgument, match="'y', and the columns are 'x', 's'"):
        Dataset.parquet(path, nulls={"y": 0})


# ---- order, workers, places ----------------------------------------------------------------------


@each()
def test_the_same_for_any_workers(files, mode):
    chain = Dataset.parquet(files).shuffle(seed=5, block=40, window=2).batch(16)
    with chain.build(workers=0) as feed:
        wanted = [list(feed), list(feed)]
    with chain.build(**options(mode)) as feed:
        assert_same([list(feed), list(feed)], wanted)
    numbers = np.concatenate([batch["n"] for batch in wanted[0]])
    assert sorted(numbers) == list(range(ROWS))
    assert list(numbers) != sorted(numbers)


@each((INLINE, THREADS, PROCESSES), ())
def test_every_order_gives_its_rows(files, mode):
    dataset = Dataset.parquet(files)
    for chain in (
        dataset,
        dataset.shuffle(seed=2),
        dataset.shuffle(seed=2, block=25, window=3),
        dataset.shard(1, 3),
        dataset.skip(39).take(55),
    ):
        with chain.build(**options(mode)) as feed:
            got = list(feed)
        order = Dataset.range(ROWS)
        for stage in _stages(chain):
            order = getattr(order, stage[0])(**stage[1])
        same(got, rows_of([int(i) for i in order]))


def grouped(path, *rows):
    """Files with row groups of these lengths, and the end of each; `n` counts all rows."""
    begin, ends = 0, []
    for number, lengths in enumerate(rows):
        with pq.ParquetWriter(path / f"{number}.parquet", table_of(0, 0).schema) as writer:
            for length in lengths:
                writer.write_table(table_of(begin, begin + length))
                ends.append(begin := begin + length)
    return Dataset.parquet(path / "*.parquet"), ends


UNEQUAL = (13, 40, 7), (25,), (0, 1, 39, 40, 20), ()


def test_blocks_are_row_groups_of_any_length(tmp_path):
    dataset, ends = grouped(tmp_path, *UNEQUAL)
    group = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
    lengths = np.diff([0, *ends])
    seen = set()
    with dataset.shuffle(seed=3, block="auto", window=3).build(workers=0) as feed:
        for _ in range(20):
            order = [int(row["n"]) for row in feed]
            assert sorted(order) == list(range(ends[-1]))
            at = 0
            while at < len(order):  # a window has all rows of its row groups
                groups = list(dict.fromkeys(group[order[at:]].tolist()))[:3]
                size = int(lengths[groups].sum())
                assert set(group[order[at : at + size]]) == set(groups)
                at += size
            seen.add(tuple(order))
    assert len(seen) == 20


def test_unequal_row_groups_are_decoded_once(tmp_path, monkeypatch):
    _, ends = grouped(tmp_path, *[(30, 30, 30, 11)] * 10)
    # Room for a window of four row groups with 12 bytes a row, and one more.
    dataset = Dataset.parquet(tmp_path / "*.parquet", ["n", "x"], cache_bytes=5 * 30 * 12)
    decoded = []
    kind = type(dataset._recipe[1][0])
    whole_group = kind.decode
    monkeypatch.setattr(kind, "decode", lambda self, i: decoded.append(i) or whole_group(self, i))

    def groups_decoded(block):
        decoded.clear()
        assert len(list(dataset.shuffle(seed=3, block=block, window=4).build(workers=0))) == 1010
        return len(decoded)

    assert groups_decoded("auto") == len(ends)
    assert groups_decoded(30) > 5 * len(ends)  # each block lies in two row groups


@each((INLINE, THREADS, PROCESSES))
def test_stored_blocks_are_the_same_for_any_workers_and_behind_maps(tmp_path, mode):
    dataset, _ = grouped(tmp_path, *UNEQUAL)
    chain = dataset.map(penstock.cast("float64", fields="n")).on_error("skip")
    chain = chain.shuffle(seed=3, block="auto", window=3).batch(16)
    with chain.build(workers=0) as feed:
        wanted = [list(feed), list(feed)]
    assert_same(wanted[0], list(chain.build(**options(mode))))
    check_checkpoints(lambda **more: chain.build(**{"use_multiprocessing": False, **more}))


def test_blocks_stay_behind_skip_and_take(tmp_path):
    dataset, _ = grouped(tmp_path, (5, 7, 3))
    rows = [int(e["n"]) for e in dataset]
    cut = dataset.skip(2).take(11).shuffle(seed=1, block="auto")
    order = [int(e["n"]) for e in cut]
    assert sorted(order) == sorted(rows[2:13])
    groups = [sum(rows.index(n) >= end for end in (5, 12)) for n in order]
    assert sum(a != b for a, b in itertools.pairwise(groups)) == 2


def test_blocks_of_a_source_without_any_are_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no blocks of its own.*give block a number"):
        list(Dataset.range(9).shuffle(seed=1, block="auto"))
    with pytest.raises(InvalidArgument, match="no blocks of its own"):
        list(grouped(tmp_path, (5, 5))[0].shard(0, 2).shuffle(seed=1, block="auto"))
    with pytest.raises(InvalidArgument, match="block is 'rows'"):
        Dataset.range(9).shuffle(seed=1, block="rows")
    empty, _ = grouped(tmp_path, ())
    (tmp_path / "0.parquet").rename(tmp_path / "empty")
    assert list(Dataset.parquet(tmp_path / "empty").shuffle(block="auto")) == []
    title = repr(empty.shuffle(seed=1, block="auto", window=2))
    assert title.endswith("shuffle(seed=1, block=auto, window=2)")


def _stages(chain):
    """The methods and arguments that were called on the source, for a Dataset.range."""
    names = {
        "shuffle": ("seed", "reshuffle"),
        "shuffle_blocks": ("seed", "block", "window", "reshuffle"),
        "shard": ("rank", "world", "remainder"),
        "skip": ("count",),
        "take": ("count",),
    }
    stages = []
    while chain._inputs:
        method, arguments = chain._recipe
        call = dict(zip(names[method], arguments, strict=True))
        stages.append((method.removesuffix("_blocks"), call))
        (chain,) = chain._inputs
    return stages[::-1]


@pytest.mark.parametrize("cache_bytes", [1, 1 << 20])
def test_it_goes_on_exactly_at_every_batch(files, cache_bytes):
    dataset = Dataset.parquet(files, cache_bytes=cache_bytes)
    for chain in (
        dataset.shuffle(seed=4, block=40, window=3).batch(26),
        dataset.batch(33),
        dataset.filter(lambda row: row["n"] % 3 == 0).batch(11),
    ):
        check_checkpoints(
            lambda chain=chain, **o: chain.build(**{"use_multiprocessing": False, **o}),
            restored=(INLINE, THREADS, PROCESSES),
        )


def test_it_goes_on_exactly_at_every_element(files):
    dataset = Dataset.parquet(files).take(95).shuffle(seed=4, block=40, window=2)
    check_checkpoints(
        lambda **o: dataset.build(**{"use_multiprocessing": False, **o}),
        restored=(INLINE, THREADS),
        count=1,
        ahead=2,
    )


def test_threads_run_it_and_processes_run_python_functions(files, monkeypatch):
    counting = Counting(monkeypatch)
    with Dataset.parquet(files).batch(8).build(workers=2) as feed:
        assert len(list(feed)) == 25
    assert sorted(counting.decoded) == list(range(7))
    with Dataset.parquet(files).map(process).build(workers=1) as feed:
        assert int(next(iter(feed))) != os.getpid()


def process(row):
    return os.getpid()


@each((THREADS, SPAWN), ())
def test_native_and_python_stages_follow(files, mode):
    chain = Dataset.parquet(files, ["raw", "n"]).map(lambda row: (len(row["raw"]), row["n"]))
    with chain.batch(50).build(**options(mode)) as feed:
        lengths = np.concatenate([batch[0] for batch in feed])
    assert lengths.tolist() == [len(text) for text in texts(range(ROWS))]


class Counting:
    """Counts the decoded row groups."""

    def __init__(self, monkeypatch):
        from penstock.dataset.parquet import RowGroups

        self.decoded = []
        decode = RowGroups.__call__

        def call(groups, number):
            self.decoded.append(number)
            return decode(groups, number)

        monkeypatch.setattr(RowGroups, "__call__", call)


def test_each_row_group_is_decoded_once(files, monkeypatch):
    counting = Counting(monkeypatch)
    for workers in (0, 1, 3):
        data = Dataset.parquet(files)
        chains = [data, data.shuffle(seed=1), data.shuffle(seed=1, block=10, window=4)]
        if not workers:  # others begin the next epoch
            chains.append(Dataset.parquet(files, cache_bytes=1))
        for chain in chains:
            counting.decoded.clear()
            with chain.batch(8).build(workers=workers) as feed:
                list(feed)
            assert sorted(counting.decoded) == list(range(7))


@pytest.mark.parametrize("shuffled", [False, True])
def test_threads_decode_row_groups_side_by_side(tmp_path, monkeypatch, shuffled):
    from penstock.dataset.parquet import RowGroups

    path = tmp_path / "x.parquet"
    pq.write_table(table_of(0, ROWS), path, row_group_size=20)
    together = threading.Barrier(2)
    decode = RowGroups.__call__

    def call(groups, number):
        together.wait(30)  # in pairs, or the row group is lost
        return decode(groups, number)

    monkeypatch.setattr(RowGroups, "__call__", call)
    chain = Dataset.parquet(path)
    if shuffled:
        chain = chain.shuffle(seed=1, block=20, window=4)
    with chain.batch(8).build(workers=2) as feed:
        assert sum(len(batch["n"]) for batch in feed) == ROWS
        together.abort()  # of the next epoch


def test_aligned_blocks_are_decoded_once_in_a_cache_of_a_window(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    pq.write_table(table_of(0, ROWS).select(["n"]), path, row_group_size=20)
    counting = Counting(monkeypatch)
    # A group has 160 bytes of values.
    chain = Dataset.parquet(path, cache_bytes=2 * 170).shuffle(seed=1, block=20, window=2)
    with chain.batch(4).build(workers=0) as feed:
        list(feed)
    assert sorted(counting.decoded) == list(range(10))


def test_row_groups_that_do_not_fit_are_still_exact(files):
    chain = Dataset.parquet(files, cache_bytes=1).shuffle(seed=3).batch(32)
    for workers in (0, 3):
        with chain.build(workers=workers) as feed:
            numbers = np.concatenate([batch["n"] for batch in feed])
        assert numbers.tolist() == [int(i) for i in Dataset.range(ROWS).shuffle(seed=3)]


def test_batches_outlive_the_feed_and_the_files(files, tmp_path):
    with Dataset.parquet(files).batch(50).build(workers=2) as feed:
        batches = list(feed)
    shutil.rmtree(tmp_path)
    assert [int(n) for batch in batches for n in batch["n"]] == list(range(ROWS))
    assert [text for batch in batches for text in batch["text"]] == texts(range(ROWS))


def test_a_pickled_dataset_reads_the_same(files):
    dataset = Dataset.parquet(files, ["n", "text"]).batch(60)
    assert_same(list(pickle.loads(pickle.dumps(dataset))), list(dataset))


# ---- refused, and damaged ------------------------------------------------------------------------


def test_wrong_arguments_say_what_to_do(files, tmp_path):
    with pytest.raises(NotFound, match=r"none\.parquet"):
        Dataset.parquet(tmp_path / "none.parquet")
    with pytest.raises(NotFound):
        Dataset.parquet(tmp_path / "*.none")
    with pytest.raises(InvalidArgument, match=r"a\.parquet has no column 'y'; it has 'n', 'x'"):
        Dataset.parquet(files, ["n", "y"])
    with pytest.raises(InvalidArgument, match="names of columns"):
        Dataset.parquet(files, [])
    with pytest.raises(InvalidArgument, match="cache_bytes"):
        Dataset.parquet(files, cache_bytes=0)
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"price": pa.array([None], pa.decimal128(9, 2))}), path)
    with pytest.raises(InvalidArgument, match=rf"{path}: .*'price'.*decimal"):
        Dataset.parquet(path)


def test_files_of_unlike_schemas_are_refused(tmp_path):
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"n": [1, 2], "x": [0.5, 1.5]}), a)
    pq.write_table(pa.table({"x": [1, 2], "n": [3, 4]}), b)
    with pytest.raises(InvalidArgument, match=rf"'x' is int64 in {b} and double in {a}; give col"):
        Dataset.parquet([a, b])
    assert [int(row["n"]) for row in Dataset.parquet([a, b], ["n"])] == [1, 2, 3, 4]
    pq.write_table(pa.table({"n": [3]}), b)
    with pytest.raises(InvalidArgument, match=rf"{b} has no column 'x'; it has 'n'"):
        Dataset.parquet([a, b])
    with pytest.raises(InvalidArgument, match=rf"{a} has a column 'x', and {b} has none"):
        Dataset.parquet([b, a])
    pq.write_table(pa.table({"x": [2.5], "n": [3]}), b)
    assert [float(row["x"]) for row in Dataset.parquet([a, b])] == [0.5, 1.5, 2.5]


@pytest.mark.parametrize("how", ["empty", "text", "cut", "length", "thrift"])
def test_a_damaged_footer_is_data_loss_when_the_dataset_is_made(files, tmp_path, how):
    path = tmp_path / "b.parquet"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    if how == "empty":
        data = b""
    elif how == "text":
        data = b"n,x\n1,2\n" * 10
    elif how == "cut":
        data = data[:-20]
    elif how == "length":
        data[-8:-4] = (1 << 30).to_bytes(4, "little")
    else:
        data[-8 - length : -8] = bytes(255 - byte for byte in data[-8 - length : -8])
    path.write_bytes(data)
    with pytest.raises(DataLoss, match=rf"{path} is no Parquet file, or its footer is damaged"):
        Dataset.parquet(files)


def damage(path, group):
    """Flip bits of a row group's first page."""
    column = pq.read_metadata(path).row_group(group).column(0)
    place = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    for at in range(place, place + 24):
        data[at] ^= 0xA5
    stamp = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@each((INLINE, THREADS, PROCESSES), ())
def test_a_damaged_row_group_costs_its_own_rows(files, tmp_path, mode):
    path = tmp_path / "b.parquet"  # rows 90 to 150, in groups of 25
    damage(path, 1)
    chain = Dataset.parquet(files).batch(10)
    with (
        chain.build(**options(mode)) as feed,
        pytest.raises(DataLoss, match=f"{path}, row group 1"),
    ):
        list(feed)
    with chain.build(on_error="skip", **options(mode)) as feed:
        numbers = np.concatenate([batch["n"] for batch in feed])
        lost = [loss[1] for loss in feed.stats()["losses"]]
    assert sorted(lost) == list(range(115, 140))
    assert sorted([*numbers, *lost]) == list(range(ROWS))


def test_a_damaged_row_group_is_not_decoded_for_each_chunk(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    pq.write_table(table_of(0, 3000).select(["n"]), path, row_group_size=1500)
    damage(path, 0)
    counting = Counting(monkeypatch)
    with Dataset.parquet(path).batch(100).build(workers=0, on_error="skip") as feed:
        assert sum(len(batch["n"]) for batch in feed) == 1500
    assert counting.decoded == [0, 1]


def test_pages_with_checksums_are_verified(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"x": np.arange(1000.0)}),
        path,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    assert len(list(Dataset.parquet(path))) == 1000
    data = bytearray(path.read_bytes())
    data[path.read_bytes().find(np.float64(500).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataLoss, match=rf"{path}, row group 0: .*CRC"):
        list(Dataset.parquet(path))


@pytest.mark.parametrize("how", ["cut", "replaced", "gone"])
def test_a_file_that_changed_since_is_named(files, tmp_path, how):
    path = tmp_path / "b.parquet"
    dataset = Dataset.parquet(files).batch(30)
    if how == "cut":
        os.truncate(path, path.stat().st_size - 100)
    elif how == "replaced":
        pq.write_table(table_of(500, 560), path, row_group_size=25)
    else:
        path.unlink()
    error, text = (NotFound, "no file") if how == "gone" else (DataLoss, "make the Dataset again")
    for workers in (0, 2):
        with dataset.build(workers=workers) as feed, pytest.raises(error, match=text) as raised:
            list(feed)
        assert str(path) in str(raised.value)
        with dataset.build(workers=workers, on_error="skip") as feed:
            assert sum(len(batch["n"]) for batch in feed) == ROWS - 60


def open_files():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.exists(link)]


def test_nothing_stays_open_or_in_memory(files, tmp_path):
    gc.collect()
    before = pa.total_allocated_bytes()
    dataset = Dataset.parquet(files).batch(16)
    feed = dataset.build(workers=2)
    assert len(list(feed)) == 13
    held = pa.total_allocated_bytes() - before
    assert held > 10_000
    assert not [name for name in open_files() if name.startswith(str(tmp_path))]
    feed.close()
    del feed
    gc.collect()
    assert pa.total_allocated_bytes() - before < held / 4


def test_pyarrow_is_named_where_it_is_missing(files):
    program = f"""
        import sys
        sys.modules["pyarrow"] = None
        import penstock
        try:
            penstock.Dataset.parquet({str(files)!r})
        except penstock.errors.InvalidArgument as error:
            assert "pip install pyarrow" in str(error), error
        else:
            raise AssertionError("it was found")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_a_folder_is_refused_with_the_way_to_give_its_files(tmp_path):
    with pytest.raises(penstock.errors.InvalidArgument, match="is a folder: give its files"):
        Dataset.parquet(tmp_path)
