"""Where the actors of a parameter server are: their names, their nodes, and which one leads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from ..errors import Closed
from .names import NAMESPACE

if TYPE_CHECKING:
    from .shard_actors import Plan

# Address on the node of that name, address elsewhere, epoch.
Place = tuple[str, str, str, int]
_LEAST_CPUS = 0.001  # a bundle of a placement group is not empty


def parts(plan: Plan, shard: int) -> list[str]:
    """The names of a shard's actors within the server: one for each replica."""
    return [f"shard-{shard}", f"shard-{shard}-replica"][: plan.replicas]


def actors(plan: Plan, shard: int) -> list[Any]:
    """The actors of a shard. Raises Closed: one of them has ended."""
    try:
        return [ray.get_actor(plan.actor(part), NAMESPACE) for part in parts(plan, shard)]
    except ValueError:
        raise Closed(
            f"shard {shard} of {plan.name} was closed, or lost without snapshots", "ParameterServer"
        ) from None


def find_leader(replicas: list[Any], timeout: float) -> tuple[Any, Place] | str:
    """Return the actor that serves, and where; or why there is none."""
    end = time.monotonic() + timeout
    asked = {each.locate.remote(): each for each in replicas}
    why = ""
    while asked:
        # A replica that is being restarted does not answer.
        done, _ = ray.wait(list(asked), timeout=max(0.0, end - time.monotonic()))
        if not done:
            return why or f"no answer within {timeout:.1f} s"
        actor = asked.pop(done[0])
        try:
            found = ray.get(done[0])
        except ray.exceptions.RayError as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            continue
        if not isinstance(found, str):
            return actor, found
        why = found
    return why


def leaders(plan: Plan, timeout: float) -> list[Any]:
    """The actors that serve, one for each shard. Raises Closed: a shard does not serve."""
    found = []
    for shard in range(plan.shards):
        replicas = actors(plan, shard)
        if plan.replicas == 1:
            found += replicas
            continue
        leader = find_leader(replicas, timeout)
        if isinstance(leader, str):
            raise Closed(f"shard {shard} of {plan.name}: {leader}", "ParameterServer")
        found.append(leader[0])
    return found


# ---- two nodes for the replicas of a shard ------------------------------------------------------


def _groups(plan: Plan) -> dict[str, Any]:
    """The placement groups of a server, by name."""
    from ray.util.placement_group import PlacementGroup, placement_group_table

    return {
        group["name"]: PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number)))
        for number, group in placement_group_table().items()
        if group["name"].startswith(f"penstock/{plan.name}/") and group["state"] != "REMOVED"
    }


def strategy(plan: Plan, shard: int, replica: int, num_cpus: float) -> Any:
    """Where Ray places a replica: never on the node of the other one."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if plan.replicas == 1:
        return "SPREAD"
    name = f"penstock/{plan.actor(f'shard-{shard}')}"
    group = _groups(plan).get(name)
    if group is None:
        bundle = {"CPU": max(num_cpus, _LEAST_CPUS)}
        group = placement_group(
            [bundle] * plan.replicas, strategy="STRICT_SPREAD", name=name, lifetime="detached"
        )
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=replica)


def release(plan: Plan) -> None:
    """Give back what strategy() has reserved. REQUIRED: the actors have ended."""
    from ray.util.placement_group import remove_placement_group

    if plan.replicas > 1:
        for group in _groups(plan).values():
            remove_placement_group(group)
