"""A Loader's position, as the small dict that `state` returns and `restore` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.arguments import integer, integer_list
from ..errors import InvalidArgument

_VERSION = 1
_OF_THE_PLAN = ("seed", "shuffle", "batch_size", "length", "streams")


def state_of(core: Any, settings: dict[str, Any], length: int) -> dict[str, Any]:
    epoch, base, step = core.position()
    rank, world = settings["rank"], settings["world"]
    return {
        "version": _VERSION,
        "epoch": epoch,
        "batches": base + step * world,  # batches of this epoch, of all ranks together
        "ahead": [base + k * world + rank for k in core.ahead()],
        "seed": settings["seed"],
        "shuffle": settings["shuffle"],
        "batch_size": settings["batch_size"] if settings["samples"] else None,
        "length": length,
        "streams": settings["streams"],
    }


def read_state(
    state: Any, mine: dict[str, Any], rank: int, world: int, steps: Callable[[int], int] | None
) -> tuple[int, int, list[int]]:
    """Check a state against the plan's own; return epoch, batches and the steps ahead of them.

    `steps` maps a number of batches to the number of later steps; None: unknown.
    """
    if (
        not isinstance(state, dict)
        or state.get("version") != _VERSION
        or not any(key in state for key in _OF_THE_PLAN)
    ):
        raise InvalidArgument("this is not a state of a Loader, or of another version", "restore")
    for key in _OF_THE_PLAN:
        if state.get(key) != mine[key]:
            raise InvalidArgument(
                f"the state was taken with {key}={state.get(key)!r}, this Loader has "
                f"{key}={mine[key]!r}; make them equal",
                "restore",
            )
    epoch = integer("epoch", state.get("epoch"), 0, operation="restore")
    batches = integer("batches", state.get("batches"), 0, operation="restore")
    if steps is not None:
        all_batches = -(-mine["length"] // (mine["batch_size"] or 1))
        # The last round of several ranks may be padded.
        if batches > all_batches and batches - all_batches >= world:
            raise InvalidArgument(
                f"the state says that {batches} batches of an epoch were delivered, and there are "
                f"{all_batches}",
                "restore",
            )
    ahead = []
    for batch in integer_list("ahead", state.get("ahead"), 0, "restore"):
        step, rest = divmod(batch - batches - rank, world)
        if rest or step < 0 or (steps is not None and step >= steps(batches)):
            raise InvalidArgument(
                "a state of an unordered feed restores at its own shard only", "restore"
            )
        ahead.append(step)
    return epoch, batches, ahead
