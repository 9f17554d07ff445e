"""The schema of a DataLoader's batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.utils.data

from ..base.element_spec import spec_of_value, with_open_rows
from ..errors import InvalidArgument
from .order import generator_states, set_generators

if TYPE_CHECKING:
    from .data_loader import DataLoader

_NONE = object()


def spec_of_loader(owner: DataLoader) -> Any:
    """Make a batch as torch does in line, and return its schema; None: it would consume the source.

    Generators are set back, so that the orders of later epochs are the same.
    """
    order = owner._index_sampler if owner._is_map else owner.dataset
    read = (order, getattr(order, "sampler", None))
    if any(hasattr(type(source), "__next__") for source in read):
        return None
    batches: dict[str, Any] = {"batch_size": owner.batch_size, "drop_last": owner.drop_last}
    if owner.batch_size is None and owner._auto_collation:
        batches = {"batch_sampler": owner.batch_sampler}
    elif owner._is_map:
        batches["sampler"] = owner.sampler
    alone = torch.utils.data.DataLoader(owner.dataset, collate_fn=owner.collate_fn, **batches)
    states = generator_states(order)
    try:
        with torch.random.fork_rng(devices=()):
            batch = next(iter(alone), _NONE)
    finally:
        set_generators(order, states)
    if batch is _NONE:
        raise InvalidArgument(f"there is no batch in {owner!r}", "element_spec")
    spec = spec_of_value(_with_columns(batch) if owner._is_default_collate() else batch)
    return with_open_rows(spec) if owner._auto_collation and not owner.drop_last else spec


def _with_columns(batch: Any) -> Any:
    """A batch of default_collate, whose columns of strings are tuples, with lists for them."""
    if isinstance(batch, dict):
        return {key: _with_columns(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and batch and isinstance(batch[0], (str, bytes)):
        return list(batch)
    if isinstance(batch, tuple):  # a named tuple
        return type(batch)(*map(_with_columns, batch))
    return [_with_columns(value) for value in batch] if isinstance(batch, list) else batch
