"""The objects that penstock.torch sends to worker processes.

Does not import torch: the workers of a plain NumPy dataset start without it, in a tenth of the
time.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any


class Start:
    """Sets a worker process up like torch's own workers, before it serves its first ticket."""

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
        self.collate_fn_map = collate_fn_map  # the user's functions for default_collate

    def __call__(self, worker: int) -> None:
        # Unpickling has imported it if the dataset, the collate or the init function uses it.
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
        # The state for worker_init_fn; later, samples are keyed by their index.
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
    """Stack as default_collate does, but not into torch's shared memory: penstock's is used."""
    import torch
    import torch.utils.data._utils.collate as torch_collate

    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)


class Collated:
    """A dataset that applies ``collate_fn`` to each item (``batch_size=None``)."""

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn

    def __getitem__(self, index: Any) -> Any:
        return self.collate_fn(self.dataset[index])


class Streams:
    """An iterable dataset: every stream is a copy of it, as in every worker of torch.

    torch's workers start each epoch with an unused dataset. A dataset that is its own iterator
    would be empty in the second epoch, so in worker processes each epoch uses a new copy, whose
    arrays are shared.
    """

    def __init__(
        self, dataset: Iterable[Any], collate_fn: Callable[[Any], Any] | None, processes: bool
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn  # applied to each item
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
