"""Files of URLs: against a server of this test's own, which stalls, breaks off and fails."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, each
from file_server import serving
from penstock import Dataset, cli
from penstock.base import remote, remote_settings, servers

MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An own cache for each test, and short waits."""
    monkeypatch.setattr(remote_settings, "_settings", remote_settings.Settings())
    monkeypatch.setattr(servers, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield tmp_path / "cache"
    assert not (tmp_path / "home").exists()


@pytest.fixture
def server():
    with serving() as server:
        yield server


def crc(data: bytes) -> int:
    return zlib.crc32(data)


def lines(begin: int, end: int, width: int = 1) -> bytes:
    return b"".join(b"%0*d\n" % (width, i) for i in range(begin, end))


def numbers(dataset, **options) -> list[int]:
    with dataset.batch(16).build(**options) as feed:
        return [int(line) for batch in feed for line in batch]


def records(path, payloads) -> bytes:
    with penstock.TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    return path.read_bytes()


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


# ---- formats


@each((INLINE, THREADS, PROCESSES, SPAWN))
def test_tfrecords_are_those_of_local_files_in_every_order(mode, server, tmp_path):
    parts = [[noise(1000, 100 * file + i) for i in range(30)] for file in range(3)]
    paths = [tmp_path / f"{n}.tfrecord" for n in range(3)]
    urls = [
        server.put(path.name, records(path, part)) for path, part in zip(paths, parts, strict=True)
    ]
    local, remote = Dataset.tfrecord(paths), Dataset.tfrecord(urls)
    assert [bytes(r) for r in remote] == [r for part in parts for r in part]
    for make in (lambda d: d.shuffle(seed=3), lambda d: d.map(crc_of).shuffle(seed=4)):
        with make(local).build(**mode.options) as one, make(remote).build(**mode.options) as two:
            for _ in range(2):
                assert list(map(str, one)) == list(map(str, two))
    assert all(server.gets[path.name] == 1 for path in paths)  # once for all passes and workers


def crc_of(record) -> int:
    return crc(bytes(record))


def test_every_source_reads_urls(server, tmp_path):
    array = np.arange(60, dtype=np.int32).reshape(20, 3)
    packed = io.BytesIO()
    np.savez(packed, a=array, b=array[:, 0])
    squeezed = io.BytesIO()
    np.savez_compressed(squeezed, a=array)
    plain = io.BytesIO()
    np.save(plain, array)
    fortran = io.BytesIO()
    np.save(fortran, np.asfortranarray(array))
    idx = b"\0\0\x08\x01" + (20).to_bytes(4, "big") + bytes(range(20))
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = array
        file["s"] = [f"text {i}" for i in range(20)]
    put = server.put

    assert numbers(Dataset.lines(put("a.txt", lines(0, 50)))) == list(range(50))
    assert numbers(Dataset.lines(put("a.txt.gz", gzip.compress(lines(0, 50))))) == list(range(50))
    table = Dataset.csv(put("t.csv", b"n,m\n1,2\n3,4\n"), {"m": "int32"})
    assert [int(row["m"]) for row in table] == [2, 4]
    rows = Dataset.fixed_records(put("f.bin", bytes(range(12))), 4)
    assert [row.tolist() for row in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [int(row) for row in Dataset.idx(put("x.idx", idx))] == list(range(20))
    assert [int(r) for r in Dataset.idx(put("x.idx.gz", gzip.compress(idx)))] == list(range(20))
    cifar = put("c.bin", b"\x07" + bytes(3072) + b"\x02" + bytes(3072))
    assert [int(row["label"]) for row in Dataset.cifar10(cifar)] == [7, 2]
    for name, data in (("a.npy", plain), ("f.npy", fortran)):
        dataset = Dataset.npy(put(name, data.getvalue()))
        assert np.array_equal(np.stack(list(dataset)), array)
    for name, data in (("a.npz", packed), ("z.npz", squeezed)):
        dataset = Dataset.npz(put(name, data.getvalue()))
        assert np.array_equal(np.stack([row["a"] for row in dataset]), array)
    url = put("data.h5", (tmp_path / "data.h5").read_bytes())
    assert np.array_equal(
        np.stack(list(Dataset.hdf5(url, "x").shuffle(seed=1))).sum(0), array.sum(0)
    )
    texts = Dataset.hdf5(url, {"s": "s"}).build(workers=1, use_multiprocessing=True)
    with texts:
        assert [row["s"] for row in texts] == [b"text %d" % i for i in range(20)]
    Dataset.range(9).cache(tmp_path / "kept").batch(3).build(workers=0).close()


@each((INLINE, THREADS, PROCESSES, SPAWN))
def test_parquet_files_are_those_of_local_ones(mode, server, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    urls, paths = [], []
    for name in ("a.parquet", "b.parquet"):
        table = pa.table({"n": np.arange(60), "s": [f"{name} {i}" for i in range(60)]})
        pq.write_table(table, tmp_path / name, row_group_size=20)
        paths.append(tmp_path / name)
        urls.append(server.put(name, (tmp_path / name).read_bytes()) + "?token=1")
    local = Dataset.parquet(paths).shuffle(seed=2, block=20, window=2)
    remote = Dataset.parquet(urls).shuffle(seed=2, block=20, window=2)
    with local.build(**mode.options) as one, remote.build(**mode.options) as two:
        for _ in range(2):
            assert [(int(r["n"]), r["s"]) for r in one] == [(int(r["n"]), r["s"]) for r in two]
    assert server.gets["a.parquet"] == 1
    assert "token" not in json.dumps(two.state())


def test_a_parquet_file_that_changed_is_a_loss_that_says_so(server, cache, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": np.arange(60)}), tmp_path / "a.parquet")
    url = server.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    before, dataset = Dataset.parquet(url), Dataset.parquet(url)
    pq.write_table(pa.table({"n": np.arange(90)}), tmp_path / "a.parquet")
    server.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    assert len(list(Dataset.parquet(url))) == 90
    assert len(list(before)) == 60  # its copy is there
    for copy in cache.iterdir():
        copy.unlink()
    with pytest.raises(penstock.DataLoss, match="another version"):
        list(dataset)
    server.put("bad.parquet", b"damaged")
    with pytest.raises(penstock.DataLoss, match=r"bad\.parquet is no Parquet file"):
        Dataset.parquet(f"{server.url}/bad.parquet")


def test_a_tar_with_braces_is_a_list_of_urls(server):
    def archive(begin):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for i in range(begin, begin + 4):
                info = tarfile.TarInfo(f"{i:03}.cls")
                info.size = 3
                tar.addfile(info, io.BytesIO(b"%03d" % i))
        return out.getvalue()

    for n in range(3):
        server.put(f"shard-{n:03}.tar", archive(4 * n))
    dataset = Dataset.tar(f"{server.url}/shard-{{000..002}}.tar", fields=["cls"])
    assert [int(bytes(sample["cls"])) for sample in dataset] == list(range(12))


def test_patterns_are_matched_by_the_file_system(server):
    for n in (2, 0, 1):
        server.put(f"data/part-{n}.txt", lines(10 * n, 10 * n + 10))
    server.put("data/other.txt", b"999\n")
    assert numbers(Dataset.lines(f"{server.url}/data/part-*.txt")) == list(range(30))
    with pytest.raises(penstock.NotFound, match=r"no file matches http.*nothing-\*"):
        list(Dataset.lines(f"{server.url}/data/nothing-*.txt"))


def test_memory_and_other_file_systems_of_fsspec():
    import fsspec

    fs = fsspec.filesystem("memory")
    try:
        for n in range(3):
            fs.pipe(f"/penstock/part-{n}.txt", lines(10 * n, 10 * n + 10))
        for n, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png")):
            fs.pipe(f"/penstock/images/{name}", bytes([n]))
        assert numbers(Dataset.lines("memory://penstock/part-?.txt")) == list(range(30))
        assert numbers(Dataset.lines("memory://penstock/part-{2,0}.txt"))[:1] == [20]
        folder = Dataset.image_folder("memory://penstock/images")
        assert [(bytes(e["image"]), int(e["label"])) for e in folder] == [
            (b"\0", 0),
            (b"\1", 0),
            (b"\2", 1),
        ]
        with pytest.raises(penstock.NotFound, match="no such file: memory://penstock/absent"):
            list(Dataset.lines("memory://penstock/absent"))
    finally:
        fs.rm("/penstock", recursive=True)


@each((INLINE, THREADS, PROCESSES))
def test_whole_files_are_fetched_side_by_side_and_once(mode, server):
    urls = [server.put(f"{n}.bin", bytes([n]) * (n + 1)) for n in range(24)]
    server.delay = 0.05
    dataset = Dataset.files(urls, labels=range(24)).shuffle(seed=1).batch(12)
    begin = time.monotonic()
    with dataset.build(**mode.options) as feed:
        for _ in range(2):
            seen = {}
            for batch in feed:
                for data, label in zip(batch["bytes"], batch["label"], strict=True):
                    seen[int(label)] = bytes(data)
            assert seen == {n: bytes([n]) * (n + 1) for n in range(24)}
        taken = time.monotonic() - begin
        assert set(server.gets.values()) == {1}
    # One after the other: two requests for each of 24 files, 2.4 s.
    assert taken < 1.8, taken


# ---- ranges, and the order of fetching


def test_a_large_file_comes_in_ranges_that_are_put_together(server):
    data = noise(11 * MIB + 7)
    url = server.put("large.bin", data)
    rows = Dataset.fixed_records(url, 1000, footer_bytes=len(data) % 1000)
    got = b"".join(row.tobytes() for row in rows)
    assert got == data[: len(got)]
    assert len(got) == len(data) // 1000 * 1000
    assert server.sent["large.bin"] < len(data) + MIB
    assert server.gets["large.bin"] >= 3


@pytest.mark.parametrize("known", [True, False], ids=["size known", "size unknown"])
def test_a_server_without_ranges_sends_whole_files(known, server, monkeypatch):
    data = lines(0, 600_000, width=9)
    assert len(data) > remote._RANGE
    url = server.put("whole.txt", data)
    server.ranges = False
    if not known:
        looked_up = remote.Remote._looked_up
        monkeypatch.setattr(
            remote.Remote,
            "_looked_up",
            lambda self, url: replace(looked_up(self, url), size=None, ranges=False),
        )
    assert numbers(Dataset.lines(url), workers=0) == list(range(600_000))


def test_a_stream_begins_before_the_last_files_are_fetched(server):
    urls = [server.put(f"{n}.txt", lines(100 * n, 100 * n + 100)) for n in range(8)]
    server.always["7.txt"] = "stall"
    dataset = Dataset.lines(urls, stream=True, compression="none")
    with dataset.build(workers=0) as feed:
        iterator = iter(feed)
        assert [int(next(iterator)) for _ in range(150)] == list(range(150))
        # The current file and those announced.
        assert set(server.gets) <= {f"{n}.txt" for n in range(5)}
        server.always.clear()
        assert [int(line) for line in iterator] == list(range(150, 800))
    first = {name: server.order.index(name) for name in server.files}
    assert first["0.txt"] < first["4.txt"] < first["7.txt"]


def test_a_stream_looks_only_at_the_front_of_large_files_to_know_their_compression(server):
    big = lines(0, 600_000, width=9)
    urls = [server.put(f"{n}.txt", big) for n in range(8)]
    dataset = Dataset.lines(urls, stream=True)
    with dataset.build(workers=0) as feed:
        assert int(next(iter(feed))) == 0
        assert server.sent["7.txt"] < MIB


# ---- faults


def test_requests_are_tried_again(server):
    url = server.put("a.txt", lines(0, 100))
    server.broken["a.txt"] = [500, 503, "close"]
    assert numbers(Dataset.lines(url)) == list(range(100))
    assert server.gets["a.txt"] == 4


def test_a_server_that_always_fails_is_an_error_with_url_and_bytes(server):
    url = server.put("a.txt", lines(0, 100))
    server.always["a.txt"] = 500
    penstock.remote_files(attempts=3)
    with pytest.raises(penstock.System, match=rf"{url}, bytes 0 to 289: 3 attempts failed.*500"):
        list(Dataset.lines(url))
    assert server.gets["a.txt"] == 3


def test_a_server_that_stalls_is_an_error_in_time(server):
    url = server.put("a.txt", lines(0, 100))
    server.always["a.txt"] = "stall"
    penstock.remote_files(timeout=0.3, attempts=2)
    begin = time.monotonic()
    with pytest.raises(penstock.System, match=r"bytes 0 to 289: 2 attempts.*no answer within 0.3"):
        list(Dataset.lines(url))
    assert time.monotonic() - begin < 5


def test_a_connection_that_closes_half_way_is_an_error(server):
    data = noise(9 * MIB)
    url = server.put("a.bin", data)
    server.always["a.bin"] = "close"
    penstock.remote_files(attempts=2)
    with pytest.raises(penstock.System, match=rf"{url}, bytes \d+ to \d+: 2 attempts failed"):
        list(Dataset.fixed_records(url, MIB))


def test_nothing_incomplete_is_left_after_an_error(server, cache):
    url = server.put("a.txt", lines(0, 100))
    server.always["a.txt"] = 500
    penstock.remote_files(attempts=1)
    with pytest.raises(penstock.System):
        list(Dataset.lines(url))
    assert os.listdir(cache) == []


def test_no_such_file_and_no_access_are_not_tried_again(server):
    with pytest.raises(penstock.NotFound, match=f"no such file: {server.url}/absent"):
        list(Dataset.lines(f"{server.url}/absent"))
    url = server.put("secret.txt", b"1\n")
    server.always["secret.txt"] = 403
    with pytest.raises(penstock.System, match=r"403.*credentials"):
        list(Dataset.lines(url))
    assert server.gets["secret.txt"] == 1


def test_a_stream_that_skips_loses_only_the_file_that_failed(server):
    urls = [server.put(f"{n}.txt", lines(10 * n, 10 * n + 10)) for n in range(3)]
    server.always["1.txt"] = 500
    penstock.remote_files(attempts=1)
    dataset = Dataset.lines(urls, stream=True, compression="none")
    with dataset.build(workers=0, on_error="skip") as feed:
        assert [int(line) for line in feed] == [*range(10), *range(20, 30)]
        ((_, _, reason),) = feed.stats()["losses"]
    assert "1.txt" in reason
    assert "500" in reason


def test_whole_files_that_skip_lose_only_those_that_failed(server):
    urls = [server.put(f"{n}.bin", bytes([n])) for n in range(10)]
    server.always["3.bin"] = 500
    penstock.remote_files(attempts=1)
    with Dataset.files(urls).batch(5).build(workers=2, on_error="skip") as feed:
        got = sorted(bytes(data)[0] for batch in feed for data in batch["bytes"])
    assert got == [n for n in range(10) if n != 3]


def test_without_fsspec_the_error_says_what_to_install(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(penstock.InvalidArgument, match=r"pip install penstock\[remote\]"):
        list(Dataset.lines(f"{server.url}/a.txt"))


def test_an_unknown_kind_of_url_is_an_error():
    with pytest.raises(penstock.InvalidArgument, match="nosuch://a/b"):
        list(Dataset.lines("nosuch://a/b"))


@pytest.mark.parametrize("kind", ["stream", "files", "processes"])
def test_closing_ends_a_wait_for_a_server(kind, server):
    urls = [server.put(f"{n}.txt", lines(0, 100)) for n in range(2)]
    server.always["1.txt"] = "stall"
    dataset = Dataset.files(urls)
    if kind == "stream":
        dataset = Dataset.lines(urls, stream=True, compression="none")
    elif kind == "processes":
        dataset = dataset.map(crc_of_file)
    feed = dataset.build(workers=1, use_multiprocessing=kind == "processes")
    begin = time.monotonic()
    threading.Timer(1.5, feed.close).start()
    with pytest.raises(penstock.Closed):
        for _ in feed:
            pass
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("where", ["build", "inline", "threads"])
def test_ctrl_c_ends_a_wait_for_a_server(where, server, tmp_path):
    stream = where != "build"
    urls = [server.put(f"{n}.txt", lines(0, 10)) for n in range(2)]
    server.always["1.txt"] = "stall"
    program = (
        "import penstock\n"
        f"d = penstock.Dataset.lines({urls}, stream={stream}, compression='none')\n"
        f"with d.build(workers={0 if where == 'inline' else 1}) as feed:\n"
        "    for line in feed: print(line, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not server.gets["1.txt"] and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, err = child.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    assert not [name for name in os.listdir(tmp_path / "cache") if name.endswith(".part")]


# ---- versions and the cache


def test_a_changed_file_is_fetched_anew_by_the_next_dataset(server):
    url = server.put("a.txt", lines(0, 10))
    dataset = Dataset.lines(url)
    assert numbers(dataset) == list(range(10))
    server.put("a.txt", lines(10, 20))
    assert numbers(dataset) == list(range(10))  # as it was when the Dataset was built
    assert numbers(Dataset.lines(url)) == list(range(10, 20))
    assert numbers(dataset) == list(range(10))
    assert server.gets["a.txt"] == 2
    assert numbers(Dataset.lines(url)) == list(range(10, 20))
    assert server.gets["a.txt"] == 2


def test_a_version_that_is_gone_is_a_loss_that_says_so(server, cache):
    url = server.put("a.txt", lines(0, 10))
    dataset = Dataset.lines(url)
    assert numbers(dataset) == list(range(10))
    server.put("a.txt", lines(10, 20))
    assert numbers(Dataset.lines(url)) == list(range(10, 20))
    for name in os.listdir(cache):
        os.unlink(cache / name)
    with pytest.raises(penstock.DataLoss, match=r"another version.*Build the dataset again"):
        numbers(dataset)


def test_copies_are_fetched_again_when_they_were_removed(server, cache):
    url = server.put("a.txt", lines(0, 10))
    dataset = Dataset.lines(url)
    assert numbers(dataset) == list(range(10))
    for name in os.listdir(cache):
        os.unlink(cache / name)
    assert numbers(dataset) == list(range(10))
    assert server.gets["a.txt"] == 2


def test_the_cache_keeps_its_size_and_what_was_used_last(server, cache):
    penstock.remote_files(cache_bytes=10 * MIB)
    urls = [server.put(f"{n}.bin", noise(MIB, n)) for n in range(30)]
    dataset = Dataset.files(urls).batch(1)
    with dataset.build(workers=0) as feed:
        for n, batch in enumerate(feed):
            assert bytes(batch["bytes"][0]) == noise(MIB, n)
            assert bytes_in(cache) <= 10 * MIB
    before = server.gets["29.bin"], server.gets["0.bin"]
    list(Dataset.files([urls[29], urls[0]]).build(workers=0))
    assert (server.gets["29.bin"], server.gets["0.bin"]) == (before[0], before[1] + 1)


def test_a_stream_of_more_than_the_cache_keeps_its_size(server, cache):
    penstock.remote_files(cache_bytes=8 * MIB)
    urls = [server.put(f"{n}.txt", lines(n * 2000, (n + 1) * 2000, width=511)) for n in range(24)]
    with Dataset.lines(urls, stream=True, compression="none").build(workers=0) as feed:
        for n, line in enumerate(feed):
            assert int(line) == n
            if n % 500 == 0:
                # Incomplete files have their whole size from the beginning.
                assert bytes_in(cache) <= 10 * MIB
                assert len(remote_copies_open(cache)) <= 10
    assert all(server.sent[f"{n}.txt"] < 1.2 * MIB for n in range(24))  # each once


def bytes_in(cache):
    total = 0
    for entry in os.scandir(cache):
        with contextlib.suppress(FileNotFoundError):  # it was completed, or removed
            total += entry.stat().st_size
    return total


def remote_copies_open(cache):
    """The descriptors of copies, removed ones, too."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            found.append(os.readlink(entry.path))
    return [path for path in found if path.startswith(str(cache))]


def test_a_child_that_was_forked_fetches_itself(server):
    urls = [server.put(f"{n}.txt", lines(0, 10)) for n in range(2)]
    assert numbers(Dataset.lines(urls[0])) == list(range(10))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if numbers(Dataset.lines(urls[1]), workers=0) == list(range(10)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert server.gets["1.txt"] == 1


@each((INLINE, THREADS, PROCESSES))
def test_a_cache_smaller_than_the_files_only_costs_time(mode, server):
    penstock.remote_files(cache_bytes=300_000)
    urls = [server.put(f"{n}.txt", lines(10_000 * n, 10_000 * n + 10_000)) for n in range(8)]
    dataset = Dataset.lines(urls).shuffle(seed=5)
    with dataset.batch(5000).build(**mode.options) as feed:
        assert sorted(int(line) for batch in feed for line in batch) == list(range(80_000))


def test_no_open_copy_is_removed(server, cache):
    urls = [server.put(f"{n}.bin", noise(MIB, n)) for n in range(3)]
    penstock.remote_files(cache_bytes=0)
    job = remote.ask("fetch", urls[0], remote.local_copy(urls[0])[1])
    while (result := job.poll(1)) is None:
        pass
    fd = result[1]
    try:
        for url in urls[1:]:
            remote.local_copy(url)
        assert len(os.listdir(cache)) == 2  # this one, and the last
        assert os.fstat(fd).st_nlink == 1
    finally:
        os.close(fd)


def test_several_processes_fetch_a_file_once(server, tmp_path):
    url = server.put("a.bin", noise(9 * MIB))
    program = (
        "import sys, zlib, penstock\n"
        f"rows = penstock.Dataset.fixed_records({url!r}, {MIB})\n"
        "print(zlib.crc32(b''.join(row.tobytes() for row in rows)))\n"
    )
    server.delay = 0.1
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = {int(child.communicate(timeout=100)[0]) for child in children}
    assert answers == {zlib.crc32(noise(9 * MIB))}
    assert server.sent["a.bin"] < 10 * MIB
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_a_killed_process_does_not_stop_the_next_one(server, tmp_path):
    url = server.put("a.txt", lines(0, 10))
    server.always["a.txt"] = "stall"
    program = f"import penstock; list(penstock.Dataset.lines({url!r}))"
    child = subprocess.Popen([sys.executable, "-c", program])
    while not server.gets["a.txt"]:
        time.sleep(0.02)
    child.kill()
    child.wait()
    server.always.clear()
    assert numbers(Dataset.lines(url)) == list(range(10))
    assert [name for name in os.listdir(tmp_path / "cache") if name.endswith(".part")] == []


def test_worker_processes_have_the_settings_of_the_dataset(server, tmp_path):
    penstock.remote_files(cache_dir=tmp_path / "elsewhere")
    urls = [server.put(f"{n}.bin", bytes([n])) for n in range(4)]
    with Dataset.files(urls).map(crc_of_file).batch(2).build(**SPAWN.options) as feed:
        assert sorted(int(v) for batch in feed for v in batch) == sorted(
            crc(bytes([n])) for n in range(4)
        )
    assert len(os.listdir(tmp_path / "elsewhere")) == 4
    assert not (tmp_path / "cache").exists()


def crc_of_file(element) -> int:
    return crc(bytes(element["bytes"]))


def test_states_do_not_depend_on_a_urls_parameters(server):
    url = server.put("a.txt", lines(0, 20))
    with Dataset.lines(f"{url}?token=1").build(workers=0) as feed:
        iterator = iter(feed)
        head = [int(next(iterator)) for _ in range(7)]
        state = json.loads(json.dumps(feed.state()))
    assert "token" not in json.dumps(state)
    with Dataset.lines(f"{url}?token=2").build(workers=0) as feed:
        feed.restore(state)
        assert head + [int(line) for line in feed] == list(range(20))


def test_titles_have_no_parameters(server, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5)
    url = server.put("a.h5", (tmp_path / "a.h5").read_bytes())
    assert repr(Dataset.hdf5(f"{url}?token=1", "x")) == "hdf5(a.h5, /x)"


# ---- what is secret in a URL


SECRET = "s3cr3t"


@pytest.fixture
def secret(server):
    """URLs of the server's files with a user, a password and parameters."""
    address = server.url.replace("://", f"://bob:{SECRET}@")
    return lambda name: f"{address}/{name}?X-Token={SECRET}&part='1'"


def said(call) -> str:
    """All that a failed call prints: the error with its causes."""
    with pytest.raises((penstock.errors.Error, OSError)) as caught:
        call()
    assert "127.0.0.1" in str(caught.value)  # it names the file
    error: BaseException | None = caught.value
    texts = []
    while error is not None:
        texts.append(f"{error} {error!r} {error.args}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


def test_errors_of_servers_tell_no_secrets(server, secret):
    penstock.remote_files(timeout=0.3, attempts=2)
    for name, fault in (("failing", 500), ("closed", 403), ("stalled", "stall"), ("cut", "close")):
        server.put(name, noise(100))
        server.always[name] = fault
        assert SECRET not in said(lambda name=name: list(Dataset.lines(secret(name))))
    assert SECRET not in said(lambda: list(Dataset.lines(secret("absent"))))
    assert SECRET not in said(lambda: list(Dataset.lines(secret("absent-*.txt"))))
    assert SECRET not in said(lambda: list(Dataset.image_folder(secret("absent/"))))
    with socket.socket() as closed:  # no server listens
        closed.bind(("127.0.0.1", 0))
        refused = secret("a").replace(f":{server.server_address[1]}", f":{closed.getsockname()[1]}")
        assert SECRET not in said(lambda: list(Dataset.lines(refused)))
    unknown = secret("a").replace("http:", "nosuch:")
    assert SECRET not in said(lambda: list(Dataset.lines(unknown)))


def test_errors_of_damaged_files_tell_no_secrets(server, secret):
    server.put("bad", b"damaged" * 100)
    server.put("bad.npz", b"damaged" * 100)
    server.put("bad.csv", b"a,b\n1\n")
    for read in (
        Dataset.tfrecord,
        Dataset.idx,
        Dataset.npy,
        Dataset.tar,
        lambda url: Dataset.hdf5(url, "x"),
        lambda url: Dataset.fixed_records(url, 13),
        lambda url: Dataset.npz(url.replace("bad", "bad.npz")),
        lambda url: Dataset.csv(url.replace("bad", "bad.csv"), {"b": "int32"}),
        lambda url: Dataset.files([url]).map(penstock.image.decode(fields="bytes")),
    ):
        assert SECRET not in said(lambda read=read: list(read(secret("bad"))))


@each((THREADS, PROCESSES))
def test_losses_reports_and_logs_tell_no_secrets(mode, server, secret, tmp_path, caplog):
    penstock.remote_files(attempts=1)
    server.put("a.jpg", b"damaged")
    server.put("b.jpg", b"damaged")
    server.always["b.jpg"] = 500
    dataset = Dataset.files([secret("a.jpg"), secret("b.jpg")])
    dataset = dataset.map(penstock.image.decode(fields="bytes")).on_error("skip")
    with dataset.build(**mode.options) as feed:
        assert list(feed) == []
        losses = feed.stats()["losses"]
        assert len(losses) == 2
        feed.report(tmp_path / "report.html")
        feed.trace(tmp_path / "trace.json")
        texts = [str(losses), repr(feed), json.dumps(feed.state()), caplog.text]
    texts += [(tmp_path / name).read_text() for name in ("report.html", "trace.json")]
    assert SECRET not in "\n".join(texts)


def test_the_command_line_tells_no_secrets(server, secret, tmp_path, capsys):
    server.put("bad.tfrecord", noise(50))
    server.put("good.tfrecord", records(tmp_path / "good.tfrecord", [b"one"]))
    url = secret("bad.tfrecord")
    cli.main(["inspect", url])
    cli.main(["inspect", url, "--json"])
    cli.main(["inspect", secret("good.tfrecord")])
    cli.main(["inspect", secret("absent")])
    assert cli.main(["verify", url]) == 1
    assert cli.main(["convert", url, str(tmp_path / "out.tfrecord")]) == 1
    out, err = capsys.readouterr()
    assert f"{server.url}/bad.tfrecord?..." in out
    assert SECRET not in out + err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"cache_bytes": -1}, "cache_bytes is -1"),
        ({"cache_dir": 3}, "3 is not a path"),
    ],
)
def test_settings_are_checked(options, why):
    with pytest.raises(penstock.InvalidArgument, match=why):
        penstock.remote_files(**options)


# ---- the command line


def test_inspect_and_verify_take_urls(server, tmp_path, capsys):
    payloads = [penstock.example({"n": i}) for i in range(10)]
    url = server.put("a.tfrecord", records(tmp_path / "a.tfrecord", payloads))
    assert cli.main(["inspect", url, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert (found["path"], found["records"], found["examples"]) == (url, 10, 10)
    assert cli.main(["verify", f"{server.url}/{{a,a}}.tfrecord"]) == 0
    assert "2 files, 20 records" in capsys.readouterr().out
    out = tmp_path / "copy.tfrecord"
    assert cli.main(["convert", url, str(out)]) == 0
    assert out.read_bytes() == server.files["a.tfrecord"]
    capsys.readouterr()
    damaged = bytearray(server.files["a.tfrecord"])
    damaged[20] ^= 1
    assert cli.main(["verify", server.put("b.tfrecord", bytes(damaged))]) == 1
    assert cli.main(["inspect", f"{server.url}/absent"]) != 0
    assert "no such file" in capsys.readouterr().err


def test_inspect_and_verify_take_parquet_by_url(server, tmp_path, capsys):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": np.arange(60)}), tmp_path / "t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    url = server.put("t.parquet", data)
    assert cli.main(["inspect", url, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert (found["path"], found["records"], found["file_bytes"]) == (url, 60, len(data))
    assert cli.main(["verify", url]) == 0
    assert cli.main(["verify", server.put("b.parquet", b"damaged")]) == 1
