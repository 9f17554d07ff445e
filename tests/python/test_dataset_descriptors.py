"""Plans of many files in a process that may open only a few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import gc, os, resource, sys
import penstock

def open_records():
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").endswith(".tfrecord")
        except FileNotFoundError:
            pass  # closed meanwhile
    return count

paths = [f"{sys.argv[1]}/{i:03}.tfrecord" for i in range(400)]
expected = [b"%d" % i for i in range(400) for _ in range(3)]
datasets = []
"""


def run(text: str, folder: Path) -> None:
    """Run in a process of its own, with its own limits."""
    ran = subprocess.run(
        [sys.executable, "-c", text, str(folder)], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import penstock.files

    folder = tmp_path_factory.mktemp("many")
    for i in range(400):
        with penstock.files.TFRecordWriter(folder / f"{i:03}.tfrecord") as out:
            for _ in range(3):
                out.write(b"%d" % i)
    return folder


def test_datasets_of_many_files_share_what_may_be_open(folder: Path) -> None:
    run(
        HEAD
        + """
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for n in range(6):
    datasets.append(penstock.Dataset.tfrecord(paths))
    assert list(datasets[-1]) == expected, n
assert 0 < open_records() <= 256, open_records()
""",
        folder,
    )


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("workers", [0, 3])
def test_few_descriptors_are_enough(folder: Path, workers: int, shuffled: bool) -> None:
    run(
        HEAD
        + f"""
resource.setrlimit(resource.RLIMIT_NOFILE, (120, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for n in range(3):
    dataset = penstock.Dataset.tfrecord(paths)
    if {shuffled}:
        dataset = dataset.shuffle(seed=3)
    datasets.append(dataset)
    with dataset.build(workers={workers}) as loader:
        found = list(loader)
        assert sorted(found) == sorted(expected), n
        assert open_records() <= 30 + 1 + {workers}, open_records()
""",
        folder,
    )


def test_where_others_take_the_descriptors_files_are_closed_for_it(folder: Path) -> None:
    run(
        HEAD
        + """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
loader = iter(penstock.Dataset.tfrecord(paths).build(workers=0))
before = [next(loader) for _ in range(600)]
others = []
while True:  # but for a few, which the loader and Python need
    try:
        others.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
for fd in others[:4]:
    os.close(fd)
assert before + list(loader) == expected
""",
        folder,
    )


@pytest.mark.parametrize("chain", ["", ".shuffle(buffer=5)", ".map(str)"])
def test_a_loader_that_was_closed_has_no_files_open(folder: Path, chain: str) -> None:
    run(
        HEAD
        + f"""
dataset = penstock.Dataset.tfrecord(paths[:40]){chain}
for workers in (0, 2):
    loader = dataset.build(workers=workers, use_multiprocessing=False)
    it = iter(loader)
    for _ in range(100):
        next(it)
    assert open_records() > 0
    loader.close()
    assert open_records() == 0, (workers, open_records())
    with dataset.build(workers=workers, use_multiprocessing=False) as again:
        assert len(list(again)) == 120
assert len(dataset) == 120 if {chain != ".shuffle(buffer=5)"} else True
assert open_records() == 0
""",
        folder,
    )


def test_a_file_that_was_replaced_is_another_one(folder: Path, tmp_path: Path) -> None:
    run(
        HEAD
        + f"""
os.symlink(paths[0], "{tmp_path}/now.tfrecord")
first = penstock.Dataset.tfrecord("{tmp_path}/now.tfrecord").build(workers=0)
it = iter(first)
assert next(it) == b"0"
os.remove("{tmp_path}/now.tfrecord")
os.symlink(paths[1], "{tmp_path}/now.tfrecord")
assert list(penstock.Dataset.tfrecord("{tmp_path}/now.tfrecord")) == [b"1"] * 3
assert next(it) == b"0"
""",
        folder,
    )
