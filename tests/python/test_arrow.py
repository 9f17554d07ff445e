"""Arrow data: elements are what pyarrow's own conversion gives; damage and nulls cost their row."""

from __future__ import annotations

import datetime
import gc
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import penstock
from arrow_tables import DTYPES, ROWS, columns, numeric_columns, other_columns, same, whole
from contract import INLINE, PROCESSES, THREADS, check_checkpoints, each, options
from penstock import Dataset

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("name", columns(1))
def test_every_type_gives_its_values(name):
    column, values = columns()[name]
    table = pa.table({"x": column})
    same(list(Dataset.arrow(table)), [{"x": value} for value in values])
    same(list(Dataset.arrow(column)), values)
    cut = table.slice(7, 30)
    same(list(Dataset.arrow(cut)), [{"x": value} for value in values[7:37]])
    parts = pa.concat_tables([table.slice(3, 5), table.slice(0, 0), table.slice(20, 11)])
    wanted = [{"x": value} for value in values[3:8] + values[20:31]]
    same(list(Dataset.arrow(parts)), wanted)
    same(list(Dataset.arrow(parts).take(9).build(workers=2)), wanted[:9])


@pytest.mark.parametrize("name", DTYPES)
def test_values_are_those_of_pyarrow(name):
    column = numeric_columns(9)[name][0]
    got = next(iter(Dataset.arrow(pa.table({"x": column})).batch(9)))["x"]
    assert got.dtype == np.dtype(name)
    assert got.tobytes() == column.to_numpy().tobytes()
    assert got.tolist() == column.to_pylist()


def test_values_are_those_of_pyarrow_for_text_and_lists():
    for name in ("string", "string_view", "binary", "list", "deep", "bools", "coded"):
        column = other_columns(9)[name][0]
        got = [e["x"] for e in Dataset.arrow(pa.table({"x": column}))]
        assert [e.tolist() if isinstance(e, np.ndarray) else e for e in got] == column.to_pylist()


def test_rows_are_nests_of_all_columns():
    table, rows = whole()
    same(list(Dataset.arrow(table)), rows)
    cut = table.slice(13)
    same(list(Dataset.arrow(cut).shuffle(seed=3).take(0)), [])
    same(list(Dataset.arrow(cut)), rows[13:])
    shuffled = list(Dataset.arrow(table).shuffle(seed=3))
    order = [int(e["int64"]) for e in shuffled]
    assert sorted(order) == list(range(ROWS))
    assert order != sorted(order)
    same(shuffled, [rows[i] for i in order])


@each()
def test_the_same_with_any_workers(mode):
    table, _ = whole()
    with Dataset.arrow(table).shuffle(seed=1).build(workers=0) as feed:
        wanted = list(feed)
    with Dataset.arrow(table).shuffle(seed=1).map(lambda e: e).build(**options(mode)) as feed:
        same(list(feed), wanted)


@each((INLINE, THREADS, PROCESSES), ())
def test_batches_of_fixed_columns_over_many_chunks(mode):
    values = np.arange(600, dtype=np.int32)
    matrix = np.arange(1800, dtype=np.float64).reshape(600, 3)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), 3)
    table = pa.table({"x": values, "m": lists})
    for size in (600, 7, 100):
        parts = pa.Table.from_batches(table.to_batches(max_chunksize=size))
        with Dataset.arrow(parts).shuffle(seed=2).batch(64).build(**options(mode)) as feed:
            for _ in range(2):
                batches = list(feed)
                order = np.concatenate([b["x"] for b in batches])
                assert np.array_equal(np.sort(order), values)
                assert np.array_equal(np.concatenate([b["m"] for b in batches]), matrix[order])


def test_every_state_is_exact():
    table, _ = whole(24)
    parts = pa.Table.from_batches(table.to_batches(max_chunksize=5))
    check_checkpoints(
        lambda **mode: Dataset.arrow(parts).shuffle(seed=4).ragged_batch(5).build(**mode)
    )


def test_states_of_single_elements_and_shards():
    table, _ = whole(9)
    for rank in range(2):
        check_checkpoints(
            lambda rank=rank, **mode: Dataset.arrow(table).shard(rank, 2).build(**mode),
            restored=(INLINE, THREADS),
        )
    parts = [list(Dataset.arrow(table).shard(rank, 2)) for rank in range(2)]
    assert sorted(int(e["int64"]) for part in parts for e in part) == list(range(9))


# ---- what may be given --------------------------------------------------------------------------


def test_any_object_with_the_interface():
    table = pa.table({"x": [1, 2, 3], "s": ["a", "b", "c"]})

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return table.__arrow_c_stream__(requested_schema)

    class Array:
        def __arrow_c_array__(self, requested_schema=None):
            return table.to_batches()[0].__arrow_c_array__(requested_schema)

    wanted = list(Dataset.arrow(table))
    for given in (Stream(), Array(), table.to_batches()[0], table.to_reader(max_chunksize=2)):
        same(list(Dataset.arrow(given)), wanted)
    same(list(Dataset.arrow(table["s"])), ["a", "b", "c"])


def test_a_reader_is_read_once():
    reader = pa.table({"x": [1]}).to_reader()
    dataset = Dataset.arrow(reader)
    assert len(dataset) == 1
    assert len(list(dataset)) == len(list(dataset)) == 1


def test_columns_are_chosen():
    table, rows = whole(5)
    got = list(Dataset.arrow(table, columns=["string", "struct/in/n", "int8"]))
    assert list(got[0]) == ["string", "struct", "int8"]
    same(
        got,
        [
            {
                "string": r["string"],
                "struct": {"in": {"n": r["struct"]["in"]["n"]}},
                "int8": r["int8"],
            }
            for r in rows
        ],
    )
    with pytest.raises(penstock.InvalidArgument, match="no column 'y'"):
        Dataset.arrow(table, columns=["y"])
    for wrong in ([], [1], "x"):
        with pytest.raises(penstock.InvalidArgument, match="columns"):
            Dataset.arrow(table, columns=wrong)


def test_empty_tables():
    table = whole(1)[0].slice(0, 0)
    assert len(Dataset.arrow(table)) == 0
    assert list(Dataset.arrow(table).batch(3)) == []
    none = pa.Table.from_batches([], schema=pa.schema({"x": pa.int32()}))
    dataset = Dataset.arrow(none)
    assert list(dataset) == []
    assert dataset.element_spec["x"].dtype == np.int32
    with pytest.raises(penstock.InvalidArgument, match="no columns"):
        Dataset.arrow(pa.table({}))


def test_the_schema_is_known():
    table, _ = whole(3)
    spec = Dataset.arrow(table).element_spec
    assert spec["matrix"].shape == (2, 3)
    assert spec["tensor"].shape == (3, 2)
    assert spec["date32"].dtype == np.int64
    assert list(spec["struct"]) == ["in", "flag"]


def hugging_face(table, indices=None):
    """A data set with the attributes of Hugging Face's that are read."""

    class Blocks:
        def __init__(self, table):
            self.table = table

        def column(self, number):
            return self.table.column(number)

    kind = type("Dataset", (), {"__module__": "datasets.arrow_dataset"})
    made = kind()
    made.data = Blocks(table)
    made._indices = None if indices is None else Blocks(pa.table({"indices": indices}))
    return made


def test_a_hugging_face_data_set_keeps_its_selection():
    table, rows = whole(10)
    same(list(Dataset.arrow(hugging_face(table))), rows)
    picked = np.array([7, 7, 0, 9], np.uint64)
    selected = Dataset.arrow(hugging_face(table, picked))
    same(list(selected), [rows[i] for i in picked])
    fixed = Dataset.arrow(hugging_face(table.select(["int64"]), picked)).batch(3)
    assert np.concatenate([b["int64"] for b in fixed]).tolist() == [7, 7, 0, 9]
    splits = type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})()
    with pytest.raises(penstock.InvalidArgument, match="train"):
        Dataset.arrow(splits)


def test_a_real_hugging_face_data_set():
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets: by hand")
    made = datasets.Dataset.from_dict({"x": list(range(10)), "s": [str(i) for i in range(10)]})
    got = list(Dataset.arrow(made.select([3, 1, 8])))
    assert [(int(e["x"]), e["s"]) for e in got] == [(3, "3"), (1, "1"), (8, "8")]


def test_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"x": [1, 2], "s": ["a", "a longer string than twelve"]})
    got = list(Dataset.arrow(frame))
    assert [(int(e["x"]), e["s"]) for e in got] == frame.rows()
    with pytest.raises(penstock.InvalidArgument, match=r"a LazyFrame .* give its collect\(\)"):
        Dataset.arrow(frame.lazy())


def test_duckdb():
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql("select range x, 'n' || range s, [range, 1] l from range(5000)")
    rows = list(Dataset.arrow(found, columns=["s", "x", "l"]))
    assert [(int(e["x"]), e["s"]) for e in rows] == [(i, f"n{i}") for i in range(5000)]
    assert rows[7]["l"].tolist() == [7, 1]


def test_a_data_set_of_pyarrow_is_read_without_the_columns_not_wanted(tmp_path):
    pyarrow_dataset = pytest.importorskip("pyarrow.dataset")
    table = pa.table({"x": [1, 2, 3], "s": [{"a": 1, "b": "u"}] * 3, "no": [["text"]] * 3})
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("a", "b"):
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = pyarrow_dataset.dataset(tmp_path)
    rows = list(Dataset.arrow(found, columns=["s/b", "x"]))
    assert [(row["s"]["b"], int(row["x"])) for row in rows] == [("u", i) for i in (1, 2, 3)] * 2
    kept = list(Dataset.arrow(found.scanner(columns=["x"], filter=pyarrow_dataset.field("x") > 1)))
    assert [int(row["x"]) for row in kept] == [2, 3] * 2
    with pytest.raises(penstock.InvalidArgument, match="'no' is list of string"):
        Dataset.arrow(found)
    with pytest.raises(penstock.InvalidArgument, match="'y'"):
        Dataset.arrow(found, columns=["y"])


def test_pandas():
    pandas = pytest.importorskip("pandas", "2.2")
    frame = pandas.DataFrame({"x": [1, 2], "s": ["a", "b"]})
    got = list(Dataset.arrow(frame))
    assert [(int(e["x"]), e["s"]) for e in got] == [(1, "a"), (2, "b")]
    images = pandas.DataFrame({"pixels": [np.zeros((2, 2)), np.ones((2, 2))]})
    with pytest.raises(penstock.InvalidArgument, match=r"a DataFrame is no Arrow table: .*pixels"):
        Dataset.arrow(images)


@pytest.mark.parametrize("given", [3, [1, 2], np.arange(3), {"x": [1]}])
def test_other_objects_are_refused(given):
    with pytest.raises(penstock.InvalidArgument, match="__arrow_c_stream__"):
        Dataset.arrow(given)


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.array([1], pa.decimal128(5, 2)), "'x' is decimal.*cast it to float64"),
        (pa.array([None], pa.null()), "'x' is null"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "'x' is map"),
        (pa.array([["a"]]), "'x' is list of string"),
        (pa.array([[{"a": 1}]]), "'x' is list of struct"),
        (pa.array([[1]], pa.list_view(pa.int64())), "'x' is list view"),
        (pa.array([{"a": [[None, "b"]]}]), "'x/a' is list of list of string"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "'x' is interval"),
        (
            pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
            "'x' is union",
        ),
        (pa.RunEndEncodedArray.from_arrays([1], [5]), "'x' is run-end"),
    ],
)
def test_types_that_cannot_be_elements_are_refused(column, what):
    table = pa.table({"y": [0], "x": column})
    with pytest.raises(penstock.InvalidArgument, match=what):
        Dataset.arrow(table)
    assert len(list(Dataset.arrow(table, columns=["y"]))) == 1


def test_a_stream_that_fails_is_quoted():
    def batches():
        yield pa.record_batch({"x": [1]})
        raise RuntimeError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int64()}), batches())
    with pytest.raises(penstock.DataLoss, match=r"after 1 batches: [\s\S]*the disk is gone"):
        Dataset.arrow(reader)


# ---- nulls --------------------------------------------------------------------------------------


def test_a_null_is_an_error_at_its_place():
    table = pa.concat_tables([pa.table({"x": [1, 2]}), pa.table({"x": [None, 4, None]})])
    iterator = iter(Dataset.arrow(table))
    assert [int(next(iterator)["x"]) for _ in range(2)] == [1, 2]
    with pytest.raises(penstock.InvalidArgument, match="'x', row 2 is null"):
        next(iterator)
    with Dataset.arrow(table).batch(2).build(on_error="skip") as feed:
        assert np.concatenate([b["x"] for b in feed]).tolist() == [1, 2, 4]
        assert feed.stats()["skipped"] == 2


@pytest.mark.parametrize(
    ("column", "fill", "wanted"),
    [
        (pa.array([1, None, 3], pa.int8()), -1, [1, -1, 3]),
        (pa.array([1.5, None], pa.float32()), math.nan, [1.5, math.nan]),
        (pa.array([True, None]), False, [True, False]),
        (pa.array(["a", None, ""]), "ü", ["a", "ü", ""]),
        (pa.array(["a", None], pa.string_view()), "", ["a", ""]),
        (pa.array([b"a", None]), b"bc", [b"a", b"bc"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), "z", ["a", "z", "a"]),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([5, None])),
            7,
            [5, 7, 7],
        ),
        (pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int32(), 2)), 9, [[1, 2], [9, 9], [9, 4]]),
        (
            pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int32(), 2)),
            [8, 9],
            [[1, 2], [8, 9], [8, 4]],
        ),
        (
            pa.array([[[1, 2], None], None], pa.list_(pa.list_(pa.int8(), 2), 2)),
            0,
            [[[1, 2], [0, 0]], [[0, 0], [0, 0]]],
        ),
        (pa.array([[1, None], None, []]), 5, [[1, 5], [], []]),
        (
            pa.array([[[1, 2], None], None], pa.list_(pa.list_(pa.int8(), 2))),
            3,
            [[[1, 2], [3, 3]], []],
        ),
        (pa.array([datetime.date(1970, 1, 2), None]), -5, [1, -5]),
    ],
)
def test_nulls_are_filled(column, fill, wanted):
    for given in (pa.table({"x": column}), pa.table({"x": pa.concat_arrays([column, column])})):
        got = [e["x"] for e in Dataset.arrow(given.slice(0, len(wanted)), nulls={"x": fill})]
        got = [e.tolist() if isinstance(e, (np.ndarray, np.generic)) else e for e in got]
        assert repr(got) == repr(wanted)
    with pytest.raises(penstock.InvalidArgument, match="null"):
        list(Dataset.arrow(pa.table({"x": column})))


def test_a_null_struct_makes_its_fields_null():
    column = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}])
    with pytest.raises(penstock.InvalidArgument, match="'s/a', row 1 is null"):
        list(Dataset.arrow(pa.table({"s": column})))
    got = list(Dataset.arrow(pa.table({"s": column}), nulls={"s/a": -1, "s/b": "-"}))
    assert [(int(e["s"]["a"]), e["s"]["b"]) for e in got] == [(1, "x"), (-1, "-"), (-1, "y")]


@pytest.mark.parametrize(
    ("column", "fill"),
    [
        (pa.array([1, None], pa.int8()), 300),
        (pa.array([1, None], pa.uint8()), -1),
        (pa.array([1, None]), 1.5),
        (pa.array([1, None]), "a"),
        (pa.array([1, None]), [1, 2]),
        (pa.array([1.0, None], pa.float16()), 1e9),
        (pa.array([True, None]), 2),
        (pa.array(["a", None]), b"a"),
        (pa.array([b"a", None]), "a"),
        (pa.array([[1], None]), [1]),
        (pa.array([1, None]), None),
    ],
)
def test_fills_of_another_type_are_refused(column, fill):
    with pytest.raises(penstock.InvalidArgument, match="nulls"):
        Dataset.arrow(pa.table({"x": column}), nulls={"x": fill})


def test_nulls_must_be_a_policy():
    table = pa.table({"x": [1]})
    for wrong in ("skip", None, 3, {"y": 1}):
        with pytest.raises(penstock.InvalidArgument, match="nulls"):
            Dataset.arrow(table, nulls=wrong)


def test_lists_of_other_lengths_in_one_row_are_an_error():
    column = pa.array([[[1], [2]], [[1], [2, 3]]])
    with pytest.raises(penstock.InvalidArgument, match="'x', row 1 has lists of 1 and 2"):
        list(Dataset.arrow(pa.table({"x": column})))


def test_text_that_is_not_utf8_is_lost_alone():
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    with Dataset.arrow(pa.table({"x": column})).on_error("skip").build() as feed:
        assert [e["x"] for e in feed] == ["a", "c"]
        (loss,) = feed.stats()["losses"]
        assert "row 1 is not UTF-8" in str(loss)


# ---- memory -------------------------------------------------------------------------------------


def addresses(table):
    _, chunks = table.parts()

    def walk(columns):
        for _, _, _, buffers, children, dictionary in columns:
            yield from (buffer[0] for buffer in buffers if buffer is not None)
            yield from walk(children)
            yield from walk(dictionary)

    return set(walk(chunks))


def test_the_buffers_are_pyarrows_own():
    table, _ = whole()
    # The sizes of views' buffers are made for the interface; an inner dictionary is not listed.
    table = table.drop_columns(["string_view", "binary_view", "list_of_coded"])
    own = set()
    for column in table.columns:
        for chunk in column.chunks:
            own |= {buffer.address for buffer in chunk.buffers() if buffer is not None}
            if pa.types.is_dictionary(chunk.type):
                own |= {b.address for b in chunk.dictionary.buffers() if b is not None}
    read = addresses(Dataset.arrow(table)._recipe[1][0])
    assert len(read) > 30
    assert read <= own


def test_memory_is_given_back():
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(3):
        table = pa.table({"x": pa.array(range(100_000)), "s": pa.array(["a" * 100] * 100_000)})
        with Dataset.arrow(table).batch(1000).build(workers=2) as feed:
            del table
            next(iter(feed))
            assert pa.total_allocated_bytes() - before > 10_000_000
        del feed
        gc.collect()
        assert pa.total_allocated_bytes() <= before


def test_nothing_leaks():
    table, _ = whole(40)

    def run():
        for _ in range(20):
            list(Dataset.arrow(table).take(20))

    run()
    before = penstock._engine.resident_bytes()
    for _ in range(5):
        run()
    assert penstock._engine.resident_bytes() - before < 8 << 20


def test_worker_processes_share_one_copy_of_overlapping_buffers():
    from penstock.dataset import arrow_memory

    table = pa.table({"x": np.arange(100_000)})
    parts = pa.Table.from_batches(table.to_batches(max_chunksize=100))
    native = Dataset.arrow(parts)._recipe[1][0]
    _, (schema, chunks, files, pieces) = arrow_memory.reduce(native)
    assert sum(piece.nbytes for piece in pieces) == 800_000
    again = arrow_memory.rebuild(schema, chunks, files, pieces)
    assert again.rows == 100_000


def test_memory_mapped_files_are_sent_by_name(tmp_path):
    from penstock.dataset import arrow_memory

    table, rows = whole(30)
    path = tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    with pa.memory_map(str(path)) as source:
        mapped = pa.ipc.open_file(source).read_all()
    dataset = Dataset.arrow(mapped)
    _, (_, _, files, pieces) = arrow_memory.reduce(dataset._recipe[1][0])
    assert [name for name, _ in files] == [str(path)]
    in_file = sum(piece[2] for piece in pieces if isinstance(piece, tuple))
    assert in_file > sum(piece.nbytes for piece in pieces if not isinstance(piece, tuple))
    with dataset.map(lambda e: e).build(**options(PROCESSES)) as feed:
        same(list(feed), rows)
    rebuild, parts = arrow_memory.reduce(dataset._recipe[1][0])
    path.rename(tmp_path / "old")
    path.write_bytes((tmp_path / "old").read_bytes())
    with pytest.raises(penstock.DataLoss, match="replaced"):
        rebuild(*parts)
    # The mapped file has another name now. Without one, its bytes are sent.
    _, (_, _, files, _) = arrow_memory.reduce(dataset._recipe[1][0])
    assert [name for name, _ in files] == [str(tmp_path / "old")]
    (tmp_path / "old").unlink()
    _, (_, _, files, pieces) = arrow_memory.reduce(dataset._recipe[1][0])
    assert files == []
    assert all(isinstance(piece, np.ndarray) for piece in pieces)


def test_a_program_ends_while_engine_threads_read():
    program = """
        import numpy as np, pyarrow as pa, penstock
        table = pa.table({"x": np.arange(100_000)})
        feed = penstock.Dataset.arrow(table).batch(10).build(workers=2)
        del table
        next(iter(feed))
        print("end")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_streaming_data_set_is_refused_with_the_way_to_feed_it():
    streaming = type("IterableDataset", (), {"__module__": "datasets.iterable_dataset"})()
    with pytest.raises(penstock.errors.InvalidArgument, match="load it without streaming=True"):
        Dataset.arrow(streaming)
