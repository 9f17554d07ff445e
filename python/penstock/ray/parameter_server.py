"""A parameter server whose shards are actors of Ray, on any hosts of its cluster."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Literal

from .. import _engine, train
from ..base.arguments import flag, integer, real, string
from ..base.conventions import Closing, shown
from ..errors import Closed, InvalidArgument, System
from ..train.parameters import engine_slab
from ..train.server import check_state, mode_numbers, snapshots_folder
from .names import NAMESPACE

if TYPE_CHECKING:
    from .shard_actors import Plan

_OPERATION = "ray.parameter_server"
# Seconds: until all actors run; until a step at all of them is done; until the last snapshot is
# written.
_START, _STEP, _LAST = 120.0, 60.0, 600.0
_RETRY = 0.1  # seconds between two searches for the leader of a shard
_THREADS = 16  # of an actor: calls that run at a time


def parameter_server(
    parameters: train.Parameters,
    optimizer: train.Optimizer,
    *,
    shards: int = 1,
    name: str | None = None,
    snapshots: str | os.PathLike[str] | None = None,
    snapshot_seconds: float = 60.0,
    staleness: int | None = None,
    lease: float = 30.0,
    workers: int = 0,
    delay_compensation: float = 0.0,
    non_finite: Literal["raise", "skip", "count"] = "raise",
    replicas: int = 1,
    replica_timeout: float = 30.0,
    secret: str | None = None,
    encrypt: bool | None = None,
    num_cpus: float = 1.0,
) -> ParameterServer:
    """Serve weights to workers on all hosts of a Ray cluster, each shard as an actor.

    Ray spreads the actors over the nodes, and restarts those that end, elsewhere if their node is
    gone. Gradients and weights go between workers and shards over penstock's own connections. The
    actors are detached: they run until `ParameterServer.close`, also when this process has ended.

    Parameters
    ----------
    parameters : Parameters
        The initial weights, which are copied into the shards.
    optimizer : Optimizer
    shards : int
        The number of actors, each with a contiguous piece of the weights.
    name : str, optional
        Names the server in the cluster. If a server with this name, these blocks and these options
        runs, the result is that server with its weights, so a driver that is started again finds
        its server. Default: a random name.
    snapshots : str or path, optional
        A folder that all nodes see. All shards save their weights, the optimizer's state and the
        ledger of pushes as they are at one moment; see `train.ParameterServer`. A server that finds
        snapshots continues from the newest undamaged one. A shard that Ray restarts does so, too:
        pushes that it acknowledged after its last snapshot are lost at this shard. Without a folder
        a shard that ends is not restarted, and calls of clients raise `Timeout`.
    snapshot_seconds : float
        Time between two snapshots.
    staleness, lease, workers, delay_compensation, non_finite
        As of `train.ParameterServer`. Clients send signs of life, so a lease expires when a
        worker's process is gone or stopped, and not in a long step.
    replicas : int
        2: each shard is on two nodes, a leader and a follower, which makes the same updates. A push
        is acknowledged when both have it. If the leader's process or node ends, the follower takes
        its place: nothing that was acknowledged is lost, and nothing is applied twice. Needs
        ``snapshots``: the folder says which replica leads, and has the state if both are lost.
    replica_timeout : float
        Seconds that pushes wait for the replacement of a lost replica. After that, pushes are
        acknowledged by one host, the logger ``penstock`` of its actor gets a warning, and
        ``stats()[i]["replicas"]`` is 1, until the replacement has the state. ``math.inf``: pushes
        wait, up to the ``timeout`` of their client.
    secret : str, optional
        A secret of at least 16 bytes that both ends of a connection must know. Default: a random
        one, which the server and its clients get through Ray.
    encrypt : bool, optional
        Whether TCP connections are encrypted (TLS 1.3). None: those with other hosts.
    num_cpus : float
        The CPUs that Ray reserves for each replica of each shard.

    Returns
    -------
    ParameterServer
        It can be pickled, and used in any actor, task or driver of the cluster.

    Raises
    ------
    InvalidArgument
        Invalid arguments; another server has the name or the folder; the snapshots are of other
        weights, optimizer or shards.
    DataLoss
        Every snapshot is damaged.
    System
        Ray could not start the actors within two minutes.
    NotFound
        A node does not see the folder.

    Examples
    --------
    >>> server = penstock.ray.parameter_server(parameters, train.Adam(1e-3), shards=8)
    >>> client = server.connect()  # in any actor, task or driver
    """
    from .shard_actors import Plan

    check_state(parameters, optimizer)
    mode = mode_numbers(staleness, lease, workers, delay_compensation, non_finite)
    folder = snapshots_folder(snapshots, _OPERATION)
    secret_given = secret is not None
    plan = Plan(
        name=f"parameter-server-{secrets.token_hex(4)}"
        if name is None
        else string("name", name, _OPERATION),
        blocks=[(block, tuple(array.shape)) for block, array in parameters.items()],
        optimizer=optimizer,
        shards=integer("shards", shards, 1, 1 << 16, operation=_OPERATION),
        mode=mode,
        encrypt=None if encrypt is None else flag("encrypt", encrypt, _OPERATION),
        snapshots=folder,
        seconds=real("snapshot_seconds", snapshot_seconds, _OPERATION),
        replicas=integer("replicas", replicas, 1, 2, operation=_OPERATION),
        replica_timeout=real("replica_timeout", replica_timeout, _OPERATION),
        server=secrets.randbits(63) + 1,
        secret=secrets.token_hex(16) if secret is None else string("secret", secret, _OPERATION),
    )
    if not 0 < plan.seconds < 1e9:
        raise InvalidArgument("snapshot_seconds must be above 0", _OPERATION)
    if not plan.replica_timeout > 0:
        raise InvalidArgument("replica_timeout must be above 0", _OPERATION)
    if plan.replicas > 1 and not folder:
        raise InvalidArgument(
            "replicas=2 needs snapshots=folder, which all nodes see: it says which replica leads",
            _OPERATION,
        )
    parameters._settle()
    return _start(plan, parameters, real("num_cpus", num_cpus, _OPERATION), secret_given)


class ParameterServer(Closing):
    """A server of `parameter_server`. Can be pickled. Threads: any."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @property
    def name(self) -> str:
        return self._plan.name

    def connect(
        self,
        *,
        name: str = "",
        worker_id: int | None = None,
        timeout: float = 60.0,
        compress: Literal["float16", "bfloat16", "top_k"] | None = None,
        top_k: float = 0.01,
    ) -> train.ParameterClient:
        """Become a worker of this server; the arguments and errors are those of `train.connect`.

        The client finds shards that Ray has restarted on other nodes. Give `worker_id`, such as
        rank + 1, to workers that Ray restarts: they count no push twice, and continue after
        `train.ParameterClient.sequence`. While a shard is being restarted, calls wait for it up to
        ``timeout`` seconds.
        """
        return train.connect(
            _Locations(self._plan),
            name=name,
            worker_id=worker_id,
            secret=self._plan.secret,
            encrypt=self._plan.encrypt,
            heartbeat=True,
            timeout=timeout,
            compress=compress,
            top_k=top_k,
        )

    def pull(self, into: train.Parameters) -> list[int]:
        """Copy the weights into parameters of the same blocks; return each shard's version.

        Raises
        ------
        InvalidArgument
            Other blocks, or no parameters.
        Closed, System
            A shard does not serve now.
        """
        slab = engine_slab("into", into, "pull")
        if [(block, tuple(array.shape)) for block, array in into.items()] != self._plan.blocks:
            raise InvalidArgument(f"into has other blocks than {self.name}", "pull")
        versions = []
        for i, (weights, version) in enumerate(self._of_all("read", _LAST)):
            _engine.set_shard_weights(slab, self._plan.shards, i, weights)
            versions.append(version)
        into.version = min(versions)
        return versions

    def stats(self) -> list[dict[str, Any]]:
        """Return the statistics of each shard: those of `train.ParameterServer.stats`, ``epoch``.

        Raises
        ------
        Closed, System
            A shard does not serve now.
        """
        return [json.loads(text) for text in self._of_all("stats", _STEP)]

    def save(self) -> None:
        """Save a snapshot now if anything has changed; return when it is complete.

        Raises
        ------
        InvalidArgument
            The server has no folder for snapshots.
        Error
            The snapshot could not be written; the one before it is still there.
        """
        if not self._plan.snapshots:
            raise InvalidArgument(
                "this server has no snapshots: give parameter_server(snapshots=folder)", "save"
            )
        self._of_snapshots("save")

    def close(self, save: bool = True) -> None:
        """End all actors of this server, in order: their last changes are saved first. Idempotent.

        Parameters
        ----------
        save : bool
            False: without a last snapshot.

        Raises
        ------
        Error
            The last snapshot could not be written. Nothing was ended: the state is still in the
            shards, for `pull`. ``close(save=False)`` ends them.
        """
        import ray

        from .shard_places import release

        if save and self._plan.snapshots and self._actor("snapshots") is not None:
            self._of_snapshots("close")
        for part in ("snapshots", *self._parts()):
            if (actor := self._actor(part)) is not None:
                ray.kill(actor)
        end = time.monotonic() + _STEP  # their names are free when this returns
        while time.monotonic() < end and any(
            self._actor(part) is not None for part in ("snapshots", *self._parts())
        ):
            time.sleep(0.01)
        release(self._plan)

    def _parts(self) -> list[str]:
        from .shard_places import parts

        return [part for i in range(self._plan.shards) for part in parts(self._plan, i)]

    def _actor(self, part: str) -> Any:
        """The actor of this part; None: it has ended."""
        import ray

        try:
            return ray.get_actor(self._plan.actor(part), NAMESPACE)
        except ValueError:
            return None

    def _of_snapshots(self, method: str) -> None:
        self._call([self._actor("snapshots")], method, _LAST)

    def _of_all(self, method: str, timeout: float) -> list[Any]:
        from .shard_places import leaders

        if None in map(self._actor, self._parts()):
            raise Closed(
                f"the server {self.name} was closed, or lost a shard without snapshots", method
            )
        end = time.monotonic() + _STEP
        while True:
            try:
                return self._call(leaders(self._plan, _STEP), method, timeout)
            except Closed:  # a leader that was lost just now has answered that it leads
                if self._plan.replicas == 1 or time.monotonic() > end:
                    raise
            time.sleep(_RETRY)

    def _call(self, actors: list[Any], method: str, timeout: float) -> list[Any]:
        import ray

        from .shard_actors import causes

        if None in actors:
            raise Closed(f"the server {self.name} was closed", method)
        try:
            with causes():
                return list(
                    ray.get([getattr(each, method).remote() for each in actors], timeout=timeout)
                )
        except ray.exceptions.RayError as error:
            raise _unreachable(self.name, method, error) from error

    def __repr__(self) -> str:
        return shown(
            self,
            self.name,
            type(self._plan.optimizer).__name__,
            blocks=len(self._plan.blocks),
            shards=self._plan.shards,
        )


class _Locations:
    """Asks the actor of a shard where it is: Ray knows which process is that actor now."""

    def __init__(self, plan: Plan) -> None:
        import ray

        self.shards = plan.shards
        self._plan = plan
        self._node = ray.get_runtime_context().get_node_id()
        self._actors: dict[int, list[Any]] = {}

    def locate(self, shard: int, timeout: float) -> tuple[str, int] | str:
        from .shard_places import actors, find_leader

        try:
            if shard not in self._actors:
                self._actors[shard] = actors(self._plan, shard)
        except Closed:
            return f"the server {self._plan.name} has no shard {shard}: it was closed or lost"
        found = find_leader(self._actors[shard], timeout)
        if isinstance(found, str):
            return f"shard {shard} of {self._plan.name}: {found}"
        node, here, elsewhere, epoch = found[1]
        return (here if node == self._node else elsewhere), epoch


# ---- starting -----------------------------------------------------------------------------------


def _start(
    plan: Plan, parameters: train.Parameters, num_cpus: float, secret_given: bool
) -> ParameterServer:
    import ray

    from .shard_actors import ShardActor, SnapshotActor, causes
    from .shard_places import parts, strategy

    if not ray.is_initialized():
        ray.init()

    def make(kind: type, part: str, *arguments: Any, **options: Any) -> Any:
        return (
            ray.remote(kind)
            .options(
                name=plan.actor(part),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1 if plan.snapshots else 0,
                max_task_retries=-1 if plan.snapshots else 0,
                max_concurrency=_THREADS,
                **options,
            )
            .remote(*arguments, *plan.pieces())
        )

    made = []

    def replica(shard: int, which: int) -> Any:
        part = parts(plan, shard)[which]
        try:
            return ray.get_actor(plan.actor(part), NAMESPACE)
        except ValueError:
            made.append(part)
        place = strategy(plan, shard, which, num_cpus)
        return make(ShardActor, part, shard, which, num_cpus=num_cpus, scheduling_strategy=place)

    def get(refs: Any, timeout: float) -> Any:
        try:
            with causes():
                return ray.get(refs, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise System(
                f"Ray did not start the actors of {plan.name} within {timeout:.0f} s: are there "
                f"{plan.shards} times {num_cpus:g} free CPUs{on_two}? See `ray status`",
                _OPERATION,
            ) from None
        except ray.exceptions.RayError as error:
            raise _unreachable(plan.name, _OPERATION, error) from error

    on_two = ", on each of two nodes" if plan.replicas > 1 else ""
    first = replica(0, 0)
    try:
        ours: Plan = get(first.plan.remote(), _START)
    except BaseException:
        if made:
            ParameterServer(plan).close(save=False)
        raise
    found = ours.server != plan.server  # the server runs already, or was left by a driver
    if found and (not plan.same_as(ours) or (secret_given and ours.secret != plan.secret)):
        raise InvalidArgument(
            f"a server with the name {plan.name} runs with other weights or options: close it, or "
            "give another name",
            _OPERATION,
        )
    plan = ours
    server = ParameterServer(plan)
    try:
        shards = [[replica(i, which) for which in range(plan.replicas)] for i in range(plan.shards)]
        get([each.prepare.remote() for replicas in shards for each in replicas], _START)
        snapshot, warnings = None, []
        writer = None
        if plan.snapshots:
            writer = make(SnapshotActor, "snapshots", num_cpus=0)
            snapshot, warnings = get(writer.find.remote(), _LAST)
        begun = [
            each.begin.remote(
                snapshot,
                b"" if snapshot else _engine.shard_weights(parameters._slab, plan.shards, i),
                parameters.version,
            )
            for i, (each, *_) in enumerate(shards)
        ]
        get(begun, _LAST)
        if writer is not None:
            get(writer.begin.remote(), _LAST)
    except BaseException:
        if not found:
            server.close(save=False)
        raise
    _warn(warnings)
    return server


def _warn(warnings: list[str]) -> None:
    import logging

    for damage in warnings:
        logging.getLogger("penstock").warning("%s. Continuing from an older snapshot", damage)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _unreachable(name: str, operation: str, error: BaseException) -> System:
    return System(f"an actor of {name} does not answer: {_first_line(error)}", operation)
