"""A container that is refilled while other threads hand it over."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import penstock
from contract import INLINE, PROCESSES, Mode, each

pytestmark = pytest.mark.timeout(60)


class Meddler(dict):
    """Copying or pickling it runs other code: here the code that refills the container."""

    meddle: Any = None

    def __copy__(self) -> Meddler:
        Meddler.meddle()
        return Meddler(self)

    def __reduce__(self) -> Any:
        Meddler.meddle()
        return Meddler, (dict(self),)


def large(index: int) -> Any:
    return np.full(3000, float(index))


class Refilled:
    """One list or dict of arrays, emptied as soon as the engine lets other threads run."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.kept: Any = None
        self.gone: list[bool] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        parts = [Meddler(x=np.zeros(3)), large(index), large(index)]
        self.kept = parts if self.kind is list else dict(enumerate(parts))
        seen = weakref.ref(parts[1])
        del parts

        def meddle() -> None:  # once
            Meddler.meddle = lambda: None
            self.kept.clear()
            self.gone.append(seen() is None)

        Meddler.meddle = meddle
        return self.kept

    def on_epoch_end(self) -> None:
        """With this hook, no batch of the next epoch is made early."""


@each((INLINE, Mode(1), PROCESSES), ())
@pytest.mark.parametrize("kind", [list, dict])
def test_what_is_handed_over_is_there_when_its_container_is_emptied(kind, mode):
    source = Refilled(kind)
    with penstock.Loader(source, **mode.options) as feed:
        for index, item in enumerate(feed):
            assert len(item) == 3
            parts = item if kind is list else list(item.values())
            assert (parts[1] == index).all()
            assert (parts[2] == index).all()
    if not mode.method:
        assert source.gone == [False] * 4


class Samples(Refilled):
    """In a batch: an array is listed, and then the object beside it is detached."""

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        if self.kind is list:
            item.reverse()
        return item


@each((INLINE, Mode(1)), ())
@pytest.mark.parametrize("kind", [list, dict])
def test_a_row_is_there_when_its_sample_is_emptied(kind, mode):
    source = Samples(kind)
    with penstock.Loader(source, batch_size=2, **mode.options) as feed:
        for number, batch in enumerate(feed):
            columns = batch if kind is list else list(batch.values())
            arrays = [column for column in columns if isinstance(column, np.ndarray)]
            assert len(arrays) == 2
            for array in arrays:
                assert array[:, 0].tolist() == [2 * number, 2 * number + 1]
                assert (array == array[:, :1]).all()
    assert source.gone == [False] * 4


@each((INLINE, Mode(1)), ())
def test_a_sample_is_released_once_its_row_is_written(mode):
    class Watched:
        def __init__(self) -> None:
            self.buffer = np.zeros(10)
            self.last: Any = None
            self.kept: list[bool] = []

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            if self.last is not None:
                self.kept.append(self.last() is not None)
            self.buffer.resize(10 + index % 2)  # an error while other code refers to it
            self.buffer.resize(10)
            made = np.zeros(10)
            self.last = weakref.ref(made)
            return made, self.buffer, [np.zeros(2, object)]

        def on_epoch_end(self) -> None:
            """With this hook, no batch of the next epoch is made early."""

    source = Watched()
    with penstock.Loader(source, batch_size=3, **mode.options) as feed:
        assert len(list(feed)) == 2
    assert source.kept == [False] * 5


STRESS = """
import sys, time, collections
import numpy as np
import penstock

class One:
    def __init__(self):
        self.sample = {"x": None, "y": None}
        if sys.argv[1] == "rows":
            self.sample["o"] = collections.OrderedDict({f"k{i}": np.ones(2) for i in range(30)})
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        self.sample["x"] = np.full(50_000, float(index))
        self.sample["y"] = [np.full(50_000, float(index))]
        return self.sample

def elements(index, one=One()):
    sample = one[index]
    sample["x"] = np.full(100_000, float(index))[::2]  # copied by NumPy, without the GIL
    return sample

options = {"workers": 4, "use_multiprocessing": False, "max_bytes": 1 << 28}
if sys.argv[1] == "dataset":
    feed = penstock.Dataset.range(100000).map(elements).build(**options)
else:
    feed = penstock.Loader(One(), batch_size=4 if sys.argv[1] == "rows" else None, **options)
with feed:
    end = time.monotonic() + 4
    for batch in feed:
        x = batch["x"].reshape(-1, 50_000)
        assert (x == x[:, :1]).all()
        if time.monotonic() > end:
            break
print("good")
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["items", "rows", "dataset"])
def test_threads_that_refill_one_dict_never_hand_over_freed_memory(what, tmp_path):
    # Released memory is no longer mapped: reading it crashes.
    script = tmp_path / "script.py"
    script.write_text(STRESS)
    done = subprocess.run(
        [sys.executable, str(script), what],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
