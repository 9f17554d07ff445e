"""tar archives of samples: against Python's tarfile and webdataset's rules, and damaged ones."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataset_functions as functions
import penstock
from contract import INLINE, PROCESSES, SPAWN, THREADS, check_checkpoints, each, options, passed
from penstock import Dataset, cli

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
each_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def archive(entries, form=tarfile.USTAR_FORMAT, **options):
    """An archive of (name, bytes), or (name, type as text) of what is no file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, **options) as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = data.encode(), "a.jpg"
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entries_of(begin, end):
    for i in range(begin, end):
        yield f"part/{i:05}.jpg", f"jpg {i}".encode() * (i % 7)
        yield f"part/{i:05}.cls", str(i % 10).encode()


def sample(i):
    return {
        "__key__": f"part/{i:05}",
        "jpg": f"jpg {i}".encode() * (i % 7),
        "cls": str(i % 10).encode(),
    }


def samples(begin, end):
    return [sample(i) for i in range(begin, end)]


@pytest.fixture
def shards(tmp_path):
    for shard, (begin, end) in enumerate(((0, 40), (40, 40), (40, 100))):
        (tmp_path / f"s-{shard:03}.tar").write_bytes(archive(entries_of(begin, end)))
    return tmp_path


def skipping(dataset):
    """What is left, and why the rest is lost."""
    with dataset.build(workers=0, on_error="skip") as feed:
        return list(feed), [reason for *_, reason in feed.stats()["losses"]]


# ---- what is read


@each_format
def test_what_tarfile_writes_is_read(tmp_path, form):
    names = ["a", "folder/b", "./c", "d" * 90, "e" * 60 + "/" + "f" * 90, "g.d/h"]
    if form != tarfile.USTAR_FORMAT:
        names += ["n" * 300, "\u00e4\u00f6/\u6f22\u5b57", "x" * 99 + "\u00e4"]
    entries = [
        (name + end, (name + end).encode()) for name in names for end in (".jpg", ".seg.png")
    ]
    path = tmp_path / "a.tar"
    path.write_bytes(archive(entries, form))
    expected = [
        {
            "__key__": name,
            "jpg": f"{name}.jpg".encode(),
            "seg.png": f"{name}.seg.png".encode(),
        }
        for name in names
    ]
    for more in ({}, {"stream": True}):
        assert list(Dataset.tar(path, **more)) == expected
    packed = tmp_path / "b.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(Dataset.tar(packed)) == expected


def test_a_pax_archive_with_every_keyword(tmp_path):
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}
    ) as tar:
        for name, data in entries_of(0, 3):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(data), 1.25, "\u00e4"
            info.pax_headers = {"SCHILY.xattr.user.a": "value", "comment": "of one"}
            tar.addfile(info, io.BytesIO(data))
    path = tmp_path / "a.tar"
    path.write_bytes(out.getvalue())
    assert list(Dataset.tar(path)) == samples(0, 3)


# (webdataset.tariterators: tar_file_iterator, base_plus_ext, group_by_keys)
def test_grouping_is_webdatasets(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(
        archive(
            [
                ("d", "5"),
                ("README", b"no key"),
                ("__meta__/x.jpg", b"meta"),
                ("d/a.jpg", b"1"),
                ("d/l.jpg", "2"),
                ("d/a.CLS", b"2"),
                ("d/a.seg.PNG", b"3"),
                ("d/p.jpg", "6"),
                ("b.jpg", b"4"),
                ("notes", b"between"),
                ("b.cls", b"5"),
                ("b.seg.png", b"6"),
                ("d.x/a.jpg", b"7"),
                ("d.x/a.cls", b"8"),
                ("d.x/a.seg.png", b"9"),
            ]
        )
    )
    assert list(Dataset.tar(path)) == [
        {"__key__": "d/a", "jpg": b"1", "cls": b"2", "seg.png": b"3"},
        {"__key__": "b", "jpg": b"4", "cls": b"5", "seg.png": b"6"},
        {"__key__": "d.x/a", "jpg": b"7", "cls": b"8", "seg.png": b"9"},
    ]


def test_keys_that_come_again_later_are_samples_of_their_own(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3")]))
    assert [(s["__key__"], s["x"]) for s in Dataset.tar(path)] == [
        ("a", b"1"),
        ("b", b"2"),
        ("a", b"3"),
    ]


def test_paths_are_patterns_braces_and_lists(shards):
    for files in (
        str(shards / "s-{000..002}.tar"),
        str(shards / "s-*.tar"),
        shards / "s-{000,001,002}.tar",
        [shards / "s-000.tar", str(shards / "s-00[12].tar")],
    ):
        dataset = Dataset.tar(files)
        assert len(dataset) == 100
        assert list(dataset) == samples(0, 100)
    with pytest.raises(penstock.NotFound, match="s-003"):
        list(Dataset.tar(str(shards / "s-{000..003}.tar")))


def test_fields_are_chosen_and_ordered(shards):
    dataset = Dataset.tar(shards / "s-000.tar", fields=["cls"])
    assert list(dataset) == [{"__key__": s["__key__"], "cls": s["cls"]} for s in samples(0, 40)]
    assert list(next(iter(Dataset.tar(shards / "s-000.tar", fields=["cls", "jpg"])))) == [
        "__key__",
        "cls",
        "jpg",
    ]
    _, lost = skipping(Dataset.tar(shards / "s-000.tar", fields=["cls", "txt"]))
    assert len(lost) == 40
    assert "sample 'part/00000' has no 'txt', only 'jpg', 'cls'" in lost[0]
    for wrong in ("jpg", [], ["JPG"], ["a/b"], [""], ["x", "x"], [1], ["__key__"]):
        with pytest.raises(penstock.InvalidArgument):
            Dataset.tar(shards / "s-000.tar", fields=wrong)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("ab/.\u00e4_", min_size=1, max_size=8).map(lambda t: t.strip("/")),
            st.binary(max_size=600),
        ).filter(lambda e: e[0]),
        max_size=12,
    ),
    st.sampled_from(list(FORMATS.values())),
)
def test_any_names_are_grouped_by_the_rule(tmp_path_factory, entries, form):
    wanted = []
    for name, data in entries:
        if ".." in name.split("/"):
            return
        folder, _, last = name.rpartition("/")
        base, dot, extension = last.partition(".")
        if re.match(r"__[^/]*__($|/)", name) or not (base and dot and extension):
            continue
        key = f"{folder}/{base}" if folder or name.startswith("/") else base
        if not wanted or wanted[-1][0] != key:
            wanted.append((key, []))
        wanted[-1][1].append((extension.lower(), data))
    sound = [
        {"__key__": key, **dict(fields)}
        for key, fields in wanted
        if len({extension for extension, _ in fields}) == len(fields)
    ]
    path = tmp_path_factory.mktemp("any") / "a.tar"
    path.write_bytes(archive(entries, form))
    for extension in {e for s in sound for e in s if e != "__key__"}:
        fields = [{"__key__": s["__key__"], extension: s.get(extension)} for s in sound]
        some, _ = skipping(Dataset.tar(path, fields=[extension]))
        assert some == [f for f in fields if f[extension] is not None]


def test_sizes_beyond_8_gib(tmp_path):
    """A sparse file: the archive says that it has 9 GiB, and takes a few blocks of the disk."""
    path = tmp_path / "a.tar"
    size = 9 << 30
    info = tarfile.TarInfo("b.bin")
    info.size = size
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        header = info.tobuf(form)
        with open(path, "wb") as file:
            file.write(archive([("a.bin", b"1")])[:1024] + header)
            file.truncate(1024 + len(header) + size)
            file.seek(0, os.SEEK_END)
            file.write(archive([("c.bin", b"3")]))
        dataset = Dataset.tar(path)
        assert len(dataset) == 3
        assert next(iter(dataset.take(1)))["bin"] == b"1"
        assert next(iter(dataset.skip(2)))["bin"] == b"3"


# ---- how it is fed


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_all_ways_of_feeding_are_the_same(shards, mode, pack):
    for path in shards.iterdir():
        path.write_bytes(pack(path.read_bytes()))
    dataset = Dataset.tar(str(shards / "s-*")).map(functions.as_it_is).batch(16)
    with dataset.build(**options(mode)) as feed:
        for _ in range(2):
            batches = passed(feed)
            assert [key for batch in batches for key in batch["__key__"]] == [
                s["__key__"] for s in samples(0, 100)
            ]
            assert [jpg for batch in batches for jpg in batch["jpg"]] == [
                s["jpg"] for s in samples(0, 100)
            ]


@each((INLINE, THREADS, PROCESSES), (SPAWN,))
def test_plain_archives_are_shuffled_as_a_whole(shards, mode):
    dataset = Dataset.tar(str(shards / "s-*")).shuffle(seed=3).map(functions.as_it_is)
    with dataset.build(workers=0) as feed:
        expected = passed(feed)
    assert sorted(expected, key=lambda s: s["__key__"]) == samples(0, 100) != expected
    with dataset.build(**options(mode)) as feed:
        assert passed(feed) == expected


def test_ranks_share_them(shards):
    parts = []
    for rank in range(3):
        with Dataset.tar(str(shards / "s-*")).shard(rank, 3).build(workers=0) as feed:
            parts += list(feed)
    assert sorted(parts, key=lambda s: s["__key__"]) == samples(0, 100)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_place_restores(shards, pack):
    for path in shards.iterdir():
        path.write_bytes(pack(path.read_bytes()))
    dataset = Dataset.tar(str(shards / "s-*")).batch(7)
    check_checkpoints(
        lambda **options: dataset.build(**options), INLINE, (INLINE, THREADS), count=1
    )
    if pack is bytes:
        shuffled = Dataset.tar(str(shards / "s-*")).shuffle(seed=1).batch(9)
        check_checkpoints(lambda **options: shuffled.build(**options), INLINE, (PROCESSES,))


def test_the_index_is_kept_beside_them(shards):
    dataset = Dataset.tar(str(shards / "s-*"), index="beside")
    assert list(dataset) == samples(0, 100)
    kept = sorted(path.name for path in shards.iterdir() if "index" in path.name)
    assert kept == [f"s-{i:03}.tar.penstock-index" for i in range(3)]
    assert list(Dataset.tar(str(shards / "s-*"), index="beside")) == samples(0, 100)
    with dataset.map(functions.as_it_is).build(**options(PROCESSES)) as feed:
        assert passed(feed) == samples(0, 100)


# ---- damage


def test_names_that_climb_are_refused(tmp_path):
    path = tmp_path / "a.tar"
    for name in ("../b.x", "d/../../b.x", "/etc/b.x"):
        path.write_bytes(archive([("a.x", b"1"), (name, b"2"), ("c.x", b"3")]))
        for stream in (False, True):
            some, lost = skipping(Dataset.tar(path, stream=stream))
            assert [s["__key__"] for s in some] == ["a", "c"]
            (reason,) = lost
            assert f"{path}, record 1 at byte 1024" in reason
            assert f"entry '{name}'" in reason
            assert "climbs out of its folder" in reason


def test_an_entry_that_is_there_twice_is_an_error(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(
        archive([("a.x", b"1"), ("b.x", b"2"), ("b.X", b"3"), ("c.x", b"4"), ("d.x", b"5")])
    )
    some, lost = skipping(Dataset.tar(path))
    assert [s["__key__"] for s in some] == ["a", "c", "d"]
    assert "sample 'b' has two of 'x'" in lost[0]
    with pytest.raises(penstock.DataLoss, match=r"entry 'b\.X' at byte 2048"):
        list(Dataset.tar(path))


def test_a_sample_with_other_fields_is_its_own_failure(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(
        archive(
            [("a.x", b""), ("a.y", b""), ("b.x", b""), ("c.x", b""), ("c.y", b""), ("c.z", b"")]
        )
    )
    some, lost = skipping(Dataset.tar(path))
    assert [s["__key__"] for s in some] == ["a"]
    assert f"{path}, record 1 at byte 1024" in lost[0]
    assert "sample 'b' has no 'y', only 'x'" in lost[0]
    assert "sample 'c' has 'z', and the first sample 'x', 'y'" in lost[1]


@each((INLINE, THREADS, PROCESSES), ())
def test_a_file_that_shrinks_loses_what_is_gone(tmp_path, mode):
    path = tmp_path / "a.tar"
    path.write_bytes(archive(entries_of(1, 41)))
    dataset = Dataset.tar(path).map(functions.as_it_is)
    with dataset.build(on_error="skip", **options(mode)) as feed:
        os.truncate(path, 2048 * 20)
        assert passed(feed) == samples(1, 21)
        assert feed.stats()["skipped"] == 20


def test_a_file_that_was_replaced_is_an_error(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive(entries_of(0, 40)))
    dataset = Dataset.tar(path)
    with dataset.build(workers=0) as feed:
        other = tmp_path / "other"
        other.write_bytes(archive(entries_of(50, 90)))
        os.replace(other, path)
        assert list(feed) == samples(0, 40), "the file that was there is open"
    with pytest.raises(penstock.DataLoss, match=r"a\.tar"), dataset.build(workers=0) as feed:
        list(feed)


def test_what_is_no_archive_says_so(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 3000)
    _, (reason,) = skipping(Dataset.tar(path))
    assert f"{path}, record 0 at byte 0" in reason
    path.write_bytes(b"")
    assert list(Dataset.tar(path)) == []
    with pytest.raises(penstock.NotFound):
        list(Dataset.tar(tmp_path / "nothing"))


# ---- what is written


def test_what_is_written_is_read_by_tarfile(tmp_path):
    keys = ["a", "folder/b", "n" * 300, "e" * 90 + "/" + "f" * 90, "\u00e4/\u6f22"]
    path = tmp_path / "a.tar"
    with penstock.TarWriter(path) as writer:
        for key in keys:
            writer.write({"__key__": key, "jpg": key.encode(), "cls": "7", "npy": memoryview(b"")})
        assert writer.samples == len(keys)
        assert not path.exists()
    with tarfile.open(path) as tar:
        found = [(info.name, tar.extractfile(info).read()) for info in tar]
    assert found == [
        (f"{key}.{end}", data)
        for key in keys
        for end, data in (("jpg", key.encode()), ("cls", b"7"), ("npy", b""))
    ]
    assert [s["__key__"] for s in Dataset.tar(path)] == keys
    assert writer.bytes_written == path.stat().st_size


def test_a_writer_refuses_what_no_reader_would_find(tmp_path):
    path = tmp_path / "a.tar"
    with penstock.TarWriter(path) as writer:
        for wrong in (
            {},
            {"x": b""},
            {"__key__": "a"},
            {"__key__": 1, "x": b""},
            {"__key__": "a.b", "x": b""},
            {"__key__": "../a", "x": b""},
            {"__key__": "a", "X": b""},
            {"__key__": "a", "x": 3},
            {"__key__": "a", "x/y": b""},
            {"__key__": "a", 3: b""},
            [("__key__", "a")],
        ):
            with pytest.raises(penstock.InvalidArgument):
                writer.write(wrong)
        writer.write({"__key__": "a", "x": b"1"})
        with pytest.raises(penstock.InvalidArgument, match="the sample before"):
            writer.write({"__key__": "a", "x": b"1"})
    assert list(Dataset.tar(path)) == [{"__key__": "a", "x": b"1"}]
    with pytest.raises(penstock.Closed):
        writer.write({"__key__": "b", "x": b"1"})
    with pytest.raises(penstock.InvalidArgument, match="zlib"):
        penstock.TarWriter(path, compression="zlib")
    with pytest.raises(RuntimeError), penstock.TarWriter(path) as writer:
        writer.write({"__key__": "c", "x": b"1"})
        raise RuntimeError
    assert list(Dataset.tar(path)) == [{"__key__": "a", "x": b"1"}], "the old file stays"


def test_a_compressed_archive_is_written(tmp_path):
    path = tmp_path / "a.tar.gz"
    with penstock.TarWriter(path, compression="gzip") as writer:
        for s in samples(0, 50):
            writer.write(s)
    assert list(Dataset.tar(path)) == samples(0, 50)


# ---- the command line


def test_inspect_and_verify(tmp_path, capfd):
    path = tmp_path / "a.tar"
    path.write_bytes(archive(entries_of(0, 30)))
    assert cli.main(["inspect", str(path)]) == 0
    out = capfd.readouterr().out
    assert "30" in out
    assert re.search(r"jpg +bytes +30 +1, of 0 to \d+ bytes", out)
    assert "penstock.Dataset.tar(" in out
    assert cli.main(["verify", str(path)]) == 0
    assert "30 samples" in capfd.readouterr().out
    damaged = bytearray(path.read_bytes())
    damaged[0] ^= 1
    path.write_bytes(damaged)
    assert cli.main(["verify", str(path)]) == 1
    out = capfd.readouterr().out
    assert f"{path}: record 0 at byte 0" in out
    assert "the checksum of a header does not match" in out
    packed = tmp_path / "b.tgz"
    packed.write_bytes(gzip.compress(archive(entries_of(0, 30))))
    assert cli.main(["verify", str(packed)]) == 0


def test_convert_from_and_to_tar(tmp_path, capfd):
    path, records, back = tmp_path / "a.tar", tmp_path / "a.tfrecord", tmp_path / "b.tar"
    path.write_bytes(archive(entries_of(0, 30)))
    assert cli.main(["convert", str(path), str(records)]) == 0
    parsed = Dataset.tfrecord(records).map(
        penstock.parse_example(
            {"__key__": penstock.bytes(), "jpg": penstock.bytes(), "cls": penstock.bytes()}
        )
    )
    assert [(e["__key__"].decode(), e["jpg"]) for e in parsed] == [
        (s["__key__"], s["jpg"]) for s in samples(0, 30)
    ]
    folder = tmp_path / "images"
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            (folder / name / f"{i}.jpg").write_bytes(f"{name} {i}".encode())
    assert cli.main(["convert", str(folder), str(back), "--shards", "2"]) == 0
    parts = sorted(tmp_path.glob("b-*.tar"))
    assert len(parts) == 2
    found = [s for part in parts for s in Dataset.tar(part)]
    assert sorted((s["__key__"], s["jpg"], s["cls"]) for s in found) == [
        (f"{name}/{i}", f"{name} {i}".encode(), str(label).encode())
        for label, name in enumerate(("cats", "dogs"))
        for i in range(3)
    ]
    capfd.readouterr()


def test_one_reader_for_what_numpy_and_shutil_make(tmp_path):
    """As users make shards: files in a folder, and the folder as an archive."""
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(4):
        np.save(folder / f"{i}.npy", np.full(3, i))
        (folder / f"{i}.txt").write_text(str(i))
    path = shutil.make_archive(str(tmp_path / "a"), "tar", folder)
    found = {s["__key__"]: s for s in Dataset.tar(path, fields=["txt", "npy"])}
    assert sorted(found) == [f"./{i}" for i in range(4)]
    for i in range(4):
        assert found[f"./{i}"]["txt"] == str(i).encode()
        assert np.array_equal(np.load(io.BytesIO(found[f"./{i}"]["npy"])), np.full(3, i))


def test_webdataset_reads_what_is_written_and_writes_what_is_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    wanted = [
        {"__key__": f"a/b{i}", "jpg": bytes([i] * i), "seg.png": b"s", "cls": str(i).encode()}
        for i in range(20)
    ]
    with penstock.TarWriter(tmp_path / "ours.tar") as ours:
        for sample in wanted:
            ours.write(sample)
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as theirs:
        for sample in wanted:
            theirs.write(sample)
    for name in ("ours.tar", "theirs.tar"):
        read = webdataset.WebDataset(str(tmp_path / name), shardshuffle=False)
        found = [{key: sample[key] for key in wanted[0]} for sample in read]
        assert found == wanted
        fields = ["jpg", "seg.png", "cls"]
        assert list(Dataset.tar(tmp_path / name, fields=fields)) == wanted


@pytest.mark.parametrize("mode", ["w:bz2", "w:xz"])
def test_other_compressions_are_refused_with_the_remedy(tmp_path, mode):
    path = tmp_path / "a.tar"
    with tarfile.open(path, mode) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO(b""))
    with pytest.raises(penstock.InvalidArgument, match=r"a\.tar is compressed by .*: unpack it"):
        Dataset.tar(str(path)).build(workers=0)
