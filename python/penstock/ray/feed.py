"""Each worker of Ray Train feeds itself with its own share of a data set.

>>> import penstock
>>> def train_loop(config):
...     for batch in penstock.ray.feed(dataset, batch_size=256): ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _engine
from ..base.ranks import train_context
from ..dataset import Dataset
from ..errors import InvalidArgument
from ..loader import Loader
from ..loader.settings import budget
from .metrics import show_feed
from .rows import rows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..loader.options import RunOptions

_OPERATION = "ray.feed"


def feed(
    source: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    drop_last: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
    device: Any = None,
    **options: Unpack[RunOptions],
) -> Loader:
    """Feed this worker of Ray Train with its share of a data set.

    Rank and world are those of Ray Train's context. Each worker computes its share from (seed,
    epoch, index): nothing coordinates the workers. Of an indexed source all of them have equally
    many batches.

    Parameters
    ----------
    source : object
        - a `Dataset`: every `world`-th element is this rank's, as by
          ``shard(rank, world, remainder="pad")``. A Dataset that has a `shard` is fed as it is. Of
          a stream, each rank reads everything and keeps its share, which may be shorter by one
          element than another rank's.
        - an iterator of ``ray.train.get_dataset_shard``, which has this rank's rows only;
        - any other source of `penstock.Loader`, as with its ``shard=(rank, world)``.
    batch_size : int, optional
        The samples of a batch of this rank. None: the source's elements are batches.
    shuffle, collate
        As for `penstock.Loader`. A Dataset has stages for them.
    drop_last : bool
        False: every sample is used; if the ranks' shares are not equal, the shorter ones are padded
        with samples from the front of the epoch's order. True: only full batches are used, and as
        many on every rank.
    device : str or torch.device, optional
        As for `penstock.torch.feed`, whose tensors are the batches then; ``"cpu"`` is a device.
        None: batches are of NumPy's arrays.
    **options
        As for `penstock.Loader`. The defaults of `workers` and `max_bytes` are this worker's share
        of the host: the cores and the memory divided by the number of workers on it.
        ``workers=penstock.ray.node_workers(16)`` is shared by all ranks of the host.

    Returns
    -------
    Loader
        Its ``state_dict()`` is small, and equal on all ranks that have taken equally many batches,
        so one rank's is saved in the checkpoint. ``load_state_dict()`` goes on behind these
        batches, with any number of ranks: the rest of the epoch is divided among them. A stream's
        state is of one rank, and `rows` of ray.data have none.

    Raises
    ------
    InvalidArgument
        This process is no worker of Ray Train; the source is a ray.data Dataset of all ranks; an
        option is invalid.
    """
    context = train_context()
    if context is None:
        raise InvalidArgument(
            "this process is not a worker of Ray Train: call penstock.ray.feed in the function "
            "that a trainer runs, such as ray.train.torch.TorchTrainer(function). Elsewhere use "
            "penstock.Loader with shard=(rank, world), or Dataset.shard(rank, world)",
            _OPERATION,
        )
    if "shard" in options:
        raise InvalidArgument(
            "shard is determined by Ray Train: leave it out, or use penstock.Loader", _OPERATION
        )
    given: dict[str, Any] = {"shuffle": shuffle, "collate": collate, **options}
    neighbours = max(int(context.get_local_world_size()), 1)
    if given.get("workers") is None:
        given["workers"] = max(_engine.usable_cores() // neighbours, 1)
    if given.get("max_bytes") is None:
        given["max_bytes"] = max(budget() // neighbours, 1 << 20)
    rank, world = context.get_world_rank(), context.get_world_size()
    chain = _chain_of(source, rank, world, drop_last)
    if chain is None:
        given |= {"batch_size": batch_size, "drop_last": drop_last, "shard": (rank, world)}
    elif batch_size is not None:
        chain = chain.batch(batch_size, drop_last=drop_last)
    fed = source if chain is None else chain
    if device is None:
        made = Loader(fed, **given)
    else:
        from ..torch import feed as feed_tensors

        made = feed_tensors(fed, device=device, **given)
    show_feed(made, rank)
    return made


def _chain_of(source: Any, rank: int, world: int, drop_last: bool) -> Dataset | None:
    """This rank's share as a Dataset; None: the source is to be sharded by a Loader."""
    data = sys.modules.get("ray.data")
    if data is not None and isinstance(source, data.Dataset):
        raise InvalidArgument(
            "a ray.data Dataset is of all ranks: give it to the trainer, by datasets={'train': "
            "...}, and give ray.train.get_dataset_shard('train') here",
            _OPERATION,
        )
    if data is not None and isinstance(source, data.DataIterator):
        return rows(source)
    if not isinstance(source, Dataset):
        return None
    if source._has_stage("shard"):
        return source
    if source._any_built().streamed:
        return source.shard(rank, world)
    return source.shard(rank, world, remainder="drop" if drop_last else "pad")
