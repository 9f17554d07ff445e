"""The rank of this process in a job of several, as its framework or launcher says."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..errors import InvalidArgument

# The environments of launchers: torchrun and what follows it; Open MPI; MPICH and Intel MPI; srun
# of Slurm. A batch script of Slurm has SLURM_PROCID=0 and SLURM_NTASKS, too, though it is alone:
# only srun sets SLURM_STEP_NUM_TASKS.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def train_context() -> Any:
    """Return the context of Ray Train if this process is one of its workers, or else None."""
    train = sys.modules.get("ray.train")
    if train is None:  # a worker has imported it
        return None
    try:
        return train.get_context()
    except (RuntimeError, DeprecationWarning):  # another process; a function of Ray Tune
        return None


def rank_and_world(operation: str) -> tuple[int, int]:
    """Return this process's rank and the number of processes of the job.

    They are those of Ray Train in one of its workers, or else those of torch's process group or of
    ``jax.distributed`` if one is initialized, or else those that the launcher has set in the
    environment. A process that is alone is (0, 1).

    Raises
    ------
    InvalidArgument
        The environment has a rank or a number of processes that is not a number.
    """
    context = train_context()
    if context is not None:
        return context.get_world_rank(), context.get_world_size()
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    for names in _LAUNCHERS:
        values = [os.environ.get(name) for name in names]
        if None in values:
            continue
        try:
            rank, world = (int(value or "") for value in values)
        except ValueError:
            said = " and ".join(f"{n}={v!r}" for n, v in zip(names, values, strict=True))
            raise InvalidArgument(
                f"the environment has {said}, which are not numbers; give (rank, world)", operation
            ) from None
        return rank, world
    return 0, 1
