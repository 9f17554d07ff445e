"""What penstock.torch sends to worker processes.

Does not import torch: a dataset of plain NumPy starts its workers without it, in a tenth of the
time.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any


class Start:
    """Makes a worker process what torch's own workers are, before it serves its first ticket."""

    def __init__(
        self,
        dataset: Any,
        workers: int,
        base_seed: int,
        worker_init_fn: Callable[[int], None] | None,
        collate_fn_map: dict[Any, Any] | None,
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        self.base_seed = base_seed
        self.worker_init_fn = worker_init_fn
        self.collate_fn_map = collate_fn_map  # what the user registered for default_collate

    def __call__(self, worker: int) -> None:
        # Unpickling has imported it if the dataset, the collate or the init function know of it.
        if "torch" in sys.modules:
            self._prepare_torch(worker)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)

    def _prepare_torch(self, worker: int) -> None:
        import random

        import numpy as np
        import torch
        import torch.utils.data._utils.collate as torch_collate
        import torch.utils.data._utils.worker as torch_worker

        torch.set_num_threads(1)
        seed = self.base_seed + worker
        # What worker_init_fn sees; samples are keyed by their index later.
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(self.base_seed, worker))
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=worker, num_workers=self.workers, seed=seed, dataset=self.dataset
        )
        known = torch_collate.default_collate_fn_map
        if self.collate_fn_map:
            known.update(self.collate_fn_map)
        if known[torch.Tensor] is torch_collate.collate_tensor_fn:
            known[torch.Tensor] = _stack


def _stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack as default_collate does, but not into shared memory of torch's: ours comes next."""
    import torch
    import torch.utils.data._utils.collate as torch_collate

    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)


class Collated:
    """A dataset whose items go through ``collate_fn`` one by one (``batch_size=None``)."""

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn

    def __getitem__(self, index: Any) -> Any:
        return self.collate_fn(self.dataset[index])


class Streams:
    """An iterable dataset: every stream is a copy of it, as every worker of torch's has one.

    Torch's workers begin each epoch with a dataset that nobody has gone through. One that is its
    own iterator would give nothing in the second: in worker processes each epoch goes through a
    copy of it, whose arrays are shared.
    """

    def __init__(
        self, dataset: Iterable[Any], collate_fn: Callable[[Any], Any] | None, processes: bool
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn  # of items one by one
        self.copies = processes and hasattr(type(dataset), "__next__")

    def __call__(self, stream: int, epoch: int) -> Iterable[Any]:
        dataset = self.dataset
        if self.copies:
            from ..processes.pickler import Pickler

            buffers: list[pickle.PickleBuffer] = []
            copied = io.BytesIO()
            with Pickler(copied, buffers.append) as pickler:
                pickler.dump(dataset)
            dataset = pickle.loads(copied.getvalue(), buffers=buffers)
        if self.collate_fn is None:
            return iter(dataset)
        return map(self.collate_fn, dataset)
