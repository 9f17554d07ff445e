"""Published weights and channels on every node of a Ray cluster."""

from __future__ import annotations

import secrets
from typing import Any

from ..base.arguments import flag, string
from ..base.conventions import Closing, shown
from ..errors import Closed, System
from .names import NAMESPACE

_START, _STEP = 120.0, 30.0  # seconds: until the first actor runs; for an answer


def relay(name: str, *, to: str | None = None, encrypt: bool | None = None) -> Relay:
    """Publish weights of this node on all other nodes, so that readers everywhere read in place.

    An actor on this node reads each version that `train.publish` makes under the name. It sends the
    version once to an actor on every other node, which publishes it there: readers call
    ``train.attach(to)`` as on this node, and share the memory. Nodes that join later get a copy,
    too. A version that is replaced before it was sent to a node is skipped there, and counted. The
    actors are detached: they run until `Relay.close`, also when this process has ended.

    Parameters
    ----------
    name : str
        As of `train.publish`, in a process of this node. The learner may start later, end, and
        start again.
    to : str, optional
        The name on the other nodes. Default: `name`.
    encrypt : bool, optional
        Whether connections between nodes are encrypted (TLS 1.3). None: those between hosts. They
        always need a secret, which the actors get through Ray.

    Returns
    -------
    Relay
        A running relay of this name, if this node has one.

    Raises
    ------
    InvalidArgument
        An invalid argument.
    System
        Ray could not start the actor within two minutes.
    """
    return _start("weights", name, to, encrypt, "ray.relay")


def relay_channel(name: str, *, to: str | None = None, encrypt: bool | None = None) -> Relay:
    """Let producers on all other nodes put items into a channel of this node.

    An actor on every other node has a channel of that name: producers there call
    ``train.attach_channel(to)`` as on this node. Its items are brought to an actor on this node,
    which puts them into the learner's channel, as one producer for each node. Each node's channel
    has the capacity and the policy of the learner's. It is there while the learner's is: when the
    learner ends, `Producer.put` raises `Closed` on all nodes, or with ``reconnect=True`` waits for
    the next learner. While the learner's channel is full, items stay on the nodes. Nodes that join
    later get a channel, too. The actors are detached: they run until `Relay.close`, also when this
    process has ended.

    Parameters
    ----------
    name : str
        As of `train.channel`, in a process of this node. The learner may start later, end, and
        start again.
    to : str, optional
        The name on the other nodes. Default: `name`.
    encrypt : bool, optional
        As for `relay`.

    Returns
    -------
    Relay
        A running relay of this channel, if this node has one.

    Raises
    ------
    InvalidArgument
        An invalid argument.
    System
        Ray could not start the actor within two minutes.

    Notes
    -----
    No item is lost or put twice when a connection breaks. If an actor or a node ends, items that
    were still there are lost, as a learner's end loses them.
    """
    return _start("channel", name, to, encrypt, "ray.relay_channel")


def _start(kind: str, name: str, to: str | None, encrypt: bool | None, operation: str) -> Relay:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from .relay_actors import RelaySource

    name = string("name", name, operation)
    to = name if to is None else string("to", to, operation)
    encrypt = None if encrypt is None else flag("encrypt", encrypt, operation)
    if not ray.is_initialized():
        ray.init()
    node = ray.get_runtime_context().get_node_id()
    actor = f"relay/{kind}/{node}/{name}/{to}"
    source = (
        ray.remote(RelaySource)
        .options(
            name=actor,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=4,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(kind, name, to, secrets.token_hex(16), encrypt)
    )
    try:
        ray.get(source.stats.remote(), timeout=_START)
    except ray.exceptions.RayError as error:
        raise System(f"Ray did not start the relay of {name}: {error}", operation) from error
    return Relay(actor, name, to)


class Relay(Closing):
    """A running relay. Can be pickled. Threads: any."""

    def __init__(self, actor: str, name: str, to: str) -> None:
        self._actor, self._name, self._to = actor, name, to

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the counts of each node, by the node's id.

        Of weights: ``version``, the learner's number of the last version that is published on the
        node; ``behind``, how many versions the learner is ahead; ``sent``, ``skipped`` and
        ``bytes`` so far; ``seconds``, from the read of the last version on the learner's node until
        it was published; ``failure``, why nothing can be sent now, or ``""``.

        Of a channel: ``items`` and ``bytes`` that were brought to the learner's node so far;
        ``seconds``, from the arrival of the last message until all its items were in the learner's
        channel; ``failure``, why nothing can be brought now, or ``""``. Of the channel on the node,
        since the learner has its own: ``put``, ``dropped_oldest``, ``dropped_newest`` and
        ``queued``, as `train.Channel.stats` counts them; items that are queued wait there.

        Raises
        ------
        Closed
            The relay was closed, or the learner's node is gone.
        """
        import ray

        try:
            found: dict[str, dict[str, Any]] = ray.get(
                ray.get_actor(self._actor, NAMESPACE).stats.remote(), timeout=_STEP
            )
        except (ValueError, ray.exceptions.RayError) as error:
            raise Closed(f"the relay of {self._name} has ended: {error}", "stats") from None
        return found

    def close(self) -> None:
        """End the actors. Readers keep the last version. Idempotent."""
        import ray

        try:
            ray.kill(ray.get_actor(self._actor, NAMESPACE))  # and with it those that it made
        except ValueError:
            return

    def __repr__(self) -> str:
        return shown(self, self._name, to=self._to)
