"""How the peers are set up: what several cases have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from harness import WORKERS


def torch_loader(dataset: Any, **options: Any) -> Any:
    """A DataLoader with two persistent worker processes; `options` override."""
    import torch

    settings: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
    settings.update(options)
    return torch.utils.data.DataLoader(dataset, **settings)


def keras_epoch(
    item: Callable[[int], Any], length: int, **options: Any
) -> Callable[[], Iterator[Any]]:
    """Return what model.fit iterates over for a PyDataset of these items; called once an epoch.

    Keras builds a new pool for each epoch, so the adapter is built anew as well.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
    from keras.utils import PyDataset

    class Batches(PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return length

        def __getitem__(self, k: int) -> Any:
            return item(k)

    def epoch() -> Iterator[Any]:
        adapter = PyDatasetAdapter(Batches(**options), shuffle=False)
        yield from adapter.get_numpy_iterator()

    return epoch


def grain_processes(dataset: Any, buffered: int) -> Any:
    """Two worker processes behind a grain MapDataset."""
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # its workers want absl's flags parsed, as absl.app.run does
    items = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    return items.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=buffered)
    )


def grain_threads(dataset: Any, buffered: int) -> Any:
    import grain

    return dataset.to_iter_dataset(
        grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=buffered)
    )


def side_by_side(module: str, function: str, *arguments: Any) -> tuple[float, list[Any]]:
    """Run a function in two fresh processes at once, with no hand-over: what a limit is made of.

    Returns the seconds from before their start to after their end, and what each returned.
    """
    import json
    import subprocess
    import time

    line = (
        f"import sys, json; sys.path[:0] = {[os.path.dirname(__file__)]!r}; "
        f"import {module} as m; "
        f"print(json.dumps(m.{function}(*json.loads(sys.argv[1]))))"
    )
    began = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", line, json.dumps([*arguments, part])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(WORKERS)
    ]
    said = [process.communicate()[0] for process in running]
    spent = time.perf_counter() - began
    return spent, [json.loads(text) for text in said]
