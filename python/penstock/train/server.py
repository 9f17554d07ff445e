"""A parameter server: workers (`client`) push gradients to it and pull weights from it."""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Literal

from .. import _engine
from ..base.arguments import addresses as addresses_of
from ..base.arguments import flag, integer, old_names, real, string
from ..base.arguments import path as path_of
from ..base.conventions import Closing, shown
from ..errors import Error, InvalidArgument, NotFound, System, Timeout
from .optimizers import Optimizer
from .parameters import Parameters, Slab, engine_slab
from .shard_processes import ShardProcesses

__all__ = ["ParameterServer"]

_PATIENCE = 10.0
_LOOK = 1.0  # seconds between two looks at the saving of snapshots
_log = logging.getLogger("penstock")
_POLICIES = ("raise", "skip", "count")


class ParameterServer(Closing):
    """Weights and an optimizer that workers share, distributed over shards.

    Parameters
    ----------
    parameters : Parameters
        The initial weights, which are copied into the shards. `pull` and `close` copy the current
        weights back.
    optimizer : Optimizer
    shards : int
        Number of contiguous pieces of equal size, which take pushes in parallel.
    staleness : int, optional
        How many pushes a worker may be ahead of the slowest; a worker that is further ahead waits.
        0: synchronous: the gradients of all workers are averaged (in the order of their names, so
        runs repeat bit for bit) and applied as one. None: no worker waits.
    lease : float
        Seconds that others wait for a silent worker. If it pushes after that without a pull within
        as many seconds, its first gradient is dropped (`ParameterClient.push` returns False),
        unless `staleness` is None.
    workers : int
        Nothing is applied before so many workers have connected.
    delay_compensation : float
        Lambda of DC-ASGD (Zheng et al. 2017), which estimates a gradient at the current weights
        from the gradient at the pulled weights. 0: off.
    non_finite : {"raise", "skip", "count"}
        What to do with a gradient that has a NaN or an infinity, as for `Updater`. "raise" raises
        in the worker.
    listen : str or list of str, optional
        Where the shards listen: ``"tcp://0.0.0.0:7000"`` (the shards use consecutive ports; 0: free
        ports), or an address for each. Default: names that only processes of this user on this host
        can use.
    secret : str, optional
        A secret of at least 16 bytes that workers must give over TCP. Required for other hosts.
        None: a random one, which processes of this user on this host find by themselves.
    encrypt : bool, optional
        Whether TCP connections are encrypted and authenticated (TLS 1.3). None: those with other
        hosts, and those of workers that ask for it. A worker that says the opposite is refused.
        Shared memory and Unix sockets stay on this host, between processes of this user, and are
        not encrypted.
    use_multiprocessing : bool
        Whether shards are processes instead of threads. A killed shard is restarted at once, with
        every acknowledged push applied exactly once; this takes twice the memory for weights and
        state.
    snapshots : str or path, optional
        A folder for snapshots: the weights, the optimizer's state and the ledger of pushes of all
        shards, as they were at one moment. The last three are kept, with checksums. A server that
        finds snapshots continues from the newest undamaged one, and so do its workers if it listens
        at the same addresses. The logger `penstock` gets a warning that names each damaged file,
        and one when snapshots begin to fail, such as on a full disk; each later time is another
        attempt. A folder is locked by the server that uses it.
    snapshot_seconds : float
        Time between two snapshots; `close` makes a last one.

    Raises
    ------
    InvalidArgument
        Invalid arguments; another server uses the folder of snapshots, which the text names with
        that server's process id; the snapshots are of other weights, optimizer or shards.
    DataLoss
        Every snapshot is damaged.
    OutOfMemory, System

    Examples
    --------
    >>> server = train.ParameterServer(parameters, train.Adam(1e-3), shards=2)
    >>> client = train.connect(server.addresses)  # in any process

    Notes
    -----
    Threads: any. A forked child does not serve. A context manager that closes the server.
    """

    @old_names(processes="use_multiprocessing")
    def __init__(
        self,
        parameters: Parameters,
        optimizer: Optimizer,
        *,
        shards: int = 1,
        staleness: int | None = None,
        lease: float = 30.0,
        workers: int = 0,
        delay_compensation: float = 0.0,
        non_finite: Literal["raise", "skip", "count"] = "raise",
        listen: str | Sequence[str] | None = None,
        secret: str | None = None,
        encrypt: bool | None = None,
        use_multiprocessing: bool = False,
        snapshots: str | os.PathLike[str] | None = None,
        snapshot_seconds: float = 60.0,
    ) -> None:
        check_state(parameters, optimizer)
        shards = _count("shards", shards, 1)
        mode = _engine.ServerMode(
            *mode_numbers(staleness, lease, workers, delay_compensation, non_finite)
        )
        where = [] if listen is None else addresses_of("listen", listen, "ParameterServer")
        secret = "" if secret is None else string("secret", secret, "ParameterServer")
        encrypt = None if encrypt is None else flag("encrypt", encrypt, "ParameterServer")
        snapshot_seconds = real("snapshot_seconds", snapshot_seconds, "ParameterServer")
        parameters._settle()
        self._parameters = parameters
        self._optimizer, self._shards = type(optimizer).__name__, shards
        folder = snapshots_folder(snapshots, "ParameterServer")
        made = (parameters._slab, optimizer._built, shards, mode, where, secret, encrypt)
        self._closed = False
        self._pid = os.getpid()
        self._line = (secret, encrypt)
        self._threads: _engine.ParameterServer | None = None
        self._processes: ShardProcesses | None = None
        if use_multiprocessing:
            self._plan = _engine.ShardProcesses(*made, folder, snapshot_seconds)
            self._processes = ShardProcesses(self._plan)
        else:
            self._threads = _engine.ParameterServer(*made, folder, snapshot_seconds)
        for damage in (self._threads or self._plan).damaged_snapshots:
            _log.warning("%s. Continuing from an older snapshot", damage)
        self._closing = threading.Event()
        if folder:
            threading.Thread(
                target=_watch_snapshots,
                args=(weakref.ref(self), min(snapshot_seconds, _LOOK), self._closing),
                name="penstock-snapshots",
                daemon=True,
            ).start()

    @property
    def addresses(self) -> list[str]:
        """One address for each shard, for `connect`."""
        if self._processes is not None:
            return list(self._processes.addresses)
        assert self._threads is not None
        return self._threads.addresses

    @property
    def pids(self) -> list[int]:
        """The pids of the shards; empty if they are threads."""
        return [] if self._processes is None else self._processes.pids

    @property
    def restarts(self) -> int:
        """How many times a shard's process was restarted."""
        return 0 if self._processes is None else self._processes.restarts

    @property
    def parameters(self) -> Parameters:
        """The weights at the last `pull`."""
        return self._parameters

    def pull(self, into: Slab | None = None) -> list[int]:
        """Copy the weights into a slab, or into `parameters`; return each shard's version.

        `InvalidArgument`: not a slab, or other blocks.
        """
        target = self._parameters if into is None else into
        versions = (self._threads or self._plan).read(engine_slab("into", target, "pull"))
        if isinstance(target, Parameters):
            target.version = min(versions)
        return versions

    def stats(self) -> list[dict[str, Any]]:
        """Return the statistics of each shard.

        Keys: ``version``; counts since the shard's start (``seconds`` ago) of ``pushes``,
        ``pulls``, ``repeated``, ``lapsed``, ``bytes_in``, ``bytes_out``; ``staleness`` (item i
        counts pushes that came ``2**(i-1)`` to ``2**i - 1`` versions after the weights of their
        gradient); ``saved_version``, the version of its snapshot; ``saving_failed``, the reason why
        the last snapshot could not be written, or ``""``; ``workers``, each with its last
        ``sequence`` and the seconds left of its lease.

        Raises
        ------
        NotFound, Closed, Timeout
            A shard's process is being restarted.
        System
            A shard's process cannot be restarted now; the text has the reason.
        """
        if self._threads is not None:
            stats: list[dict[str, Any]] = json.loads(self._threads.stats())
            return stats
        try:
            return [
                json.loads(_engine.shard_stats(address, *self._line, _PATIENCE))
                for address in self.addresses
            ]
        except (NotFound, Timeout) as error:
            if self._processes is not None and (why := self._processes.failure):
                raise System(why, "ParameterServer") from error
            raise

    def close(self) -> None:
        """End all connections, and copy the weights into `parameters`. Idempotent.

        Does nothing in a forked child: the server is the parent's.

        Raises
        ------
        System
            A last snapshot could not be written. Save the weights, which are in `parameters`.
        """
        if self._closed or self._pid != os.getpid():
            return
        shards = self._processes or self._threads
        assert shards is not None
        self._closing.set()
        try:
            shards.close()
        except Error:
            self._closed = True
            raise
        finally:  # also after Ctrl-C; close() can then be called again
            self.pull()
        self._closed = True

    def __del__(self) -> None:
        closing = getattr(self, "_closing", None)
        if closing is not None:
            closing.set()
        processes = getattr(self, "_processes", None)
        if processes is not None and self._pid == os.getpid():
            processes.close()

    def __repr__(self) -> str:
        return shown(
            self,
            self._optimizer,
            blocks=len(self._parameters),
            shards=self._shards,
            use_multiprocessing=self._processes is not None,
        )


def _watch_snapshots(
    server: weakref.ref[ParameterServer], pause: float, closing: threading.Event
) -> None:  # in a thread
    before = ""
    while not closing.wait(pause):
        its = server()
        if its is None:
            return
        failure = (its._threads or its._plan).saving_failed
        del its
        if failure and not before:
            _log.warning("no snapshot could be written: %s. The server tries again", failure)
        elif before and not failure:
            _log.warning("snapshots are written again")
        before = failure


def check_state(parameters: Any, optimizer: Any) -> None:
    """Raise `InvalidArgument` if these are not the weights and the optimizer of a server."""
    if not isinstance(parameters, Parameters):
        raise _wrong("parameters", parameters, "train.Parameters")
    if not isinstance(optimizer, Optimizer):
        raise _wrong("optimizer", optimizer, "one such as train.Adam(1e-3)")


def snapshots_folder(snapshots: Any, operation: str) -> str:
    """Make a server's folder for snapshots; return it absolute, or "" for None."""
    if snapshots is None:
        return ""
    folder = os.path.abspath(path_of(snapshots, operation))  # this process may go elsewhere
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"snapshots={folder!r} cannot be made a folder: {error.strerror}", operation
        ) from error
    return folder


def mode_numbers(
    staleness: int | None, lease: float, workers: int, delay_compensation: float, non_finite: str
) -> tuple[int | None, float, int, float, int]:
    """Check these arguments of a server; return those of `_engine.ServerMode`."""
    if not isinstance(non_finite, str) or non_finite not in _POLICIES:
        raise InvalidArgument(
            f"non_finite is {non_finite!r}; there are {', '.join(_POLICIES)}", "ParameterServer"
        )
    return (
        None if staleness is None else _count("staleness", staleness, 0),
        real("lease", lease, "ParameterServer"),
        _count("workers", workers, 0),
        real("delay_compensation", delay_compensation, "ParameterServer"),
        _POLICIES.index(non_finite),
    )


def _count(name: str, value: Any, least: int) -> int:
    return integer(name, value, least, (1 << 32) - 1, operation="ParameterServer")


def _wrong(name: str, value: Any, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is a {type(value).__name__}; give {wanted}", "ParameterServer")
