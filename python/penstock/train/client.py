"""A worker of a parameter server: pulls weights, pushes gradients."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from .. import _engine
from ..base.arguments import addresses as addresses_of
from ..base.arguments import flag, integer, old_names, real, string
from ..base.conventions import Closing
from ..errors import Error, InvalidArgument
from .parameters import Parameters, Slab, copy_all, engine_slab
from .steps import Rows, parts_of

__all__ = ["ParameterClient", "Resolver", "connect"]

# Seconds between two signs of life: a share of the lease, within these limits.
_BEATS_IN_LEASE, _FEWEST, _MOST = 4, 0.02, 10.0


class Resolver(Protocol):
    """Finds the shards of a server that may move to other addresses.

    A client asks it before every attempt to connect, from any thread.
    """

    shards: int  # of the server

    def locate(self, shard: int, timeout: float) -> tuple[str, int] | str:
        """Return the address and the epoch of a shard, within `timeout` seconds.

        A shard with a lower epoch at this address is refused; 0: any. Return the reason as text if
        the address is not known now: the client asks again until its own timeout.
        """
        ...


_ENCODINGS = {None: 0, "float16": 1, "bfloat16": 2, "top_k": 3}


class ParameterClient(Closing):
    """A worker of a `ParameterServer`. `connect` makes one.

    Each push is applied once at each shard, even if a connection is cut or a shard is restarted:
    the client reconnects and repeats requests that were not answered.

    Threads: any; calls run one at a time. A forked child must connect for itself. A context manager
    that closes the client.
    """

    def __init__(self, client: _engine.ParameterClient, heartbeat: bool = False) -> None:
        self._client = client
        self._closing = threading.Event()
        if heartbeat:
            threading.Thread(
                target=_beat,
                args=(weakref.ref(self), client.lease, self._closing),
                name="penstock-heartbeat",
                daemon=True,
            ).start()
        self._parameters: Parameters | None = None
        self._gradients: Slab | None = None
        self._copying = threading.Lock()  # for a thread that copies into `gradients`
        self._iterating: tuple[Any, Iterator[Any]] | None = None
        self._lapses = 0
        self._skipped = 0

    @property
    def parameters(self) -> Parameters:
        """The weights of this worker, the default target of `pull`."""
        if self._parameters is None:
            made = Parameters.__new__(Parameters)
            Slab.__init__(made, self._client.slab(False))
            self._parameters = made
        return self._parameters

    @property
    def gradients(self) -> Slab:
        """A slab for gradients that shards on this host read in place."""
        if self._gradients is None:
            self._gradients = Slab(self._client.slab(True))
        return self._gradients

    @property
    def sequence(self) -> int:
        """The number of this worker's last push, counted from 1.

        After `connect` with the ``worker_id`` of an earlier client: of the last push that every
        shard has decided on. So a worker whose step n ends with push n continues with step
        ``sequence + 1``. If some shards had applied that push when the earlier client ended, they
        only answer it, and the others apply it.
        """
        return self._client.sequence

    def pull(self, into: Slab | None = None) -> list[int]:
        """Copy the current weights from every shard.

        Parameters
        ----------
        into : Slab, optional
            The target: parameters, or another slab of the same blocks. Default: `parameters`.

        Returns
        -------
        list of int
            Each shard's version: all updates up to it are included; parts may be newer.

        Raises
        ------
        InvalidArgument, Closed
            Other blocks, or no slab; another server has the address now; the client was closed.
        Timeout
            A shard was unreachable or stopped for ``timeout`` seconds.
        """
        target = self.parameters if into is None else into
        versions = self._client.pull(engine_slab("into", target, "pull"))
        if isinstance(target, Parameters):
            target.version = min(versions)
        return versions

    def push(self, gradients: Slab | Mapping[str, Any | Rows]) -> bool:
        """Send gradients to all shards; return when they have decided on the push.

        Parameters
        ----------
        gradients : Slab, or dict from every block's name to an array
            Shards on this host read `gradients`, or another shared slab, in place; other values are
            copied first. If the dict has `Rows`, only the dict's rows and blocks are sent and
            changed, the optimizer's state included; other blocks are left untouched. If gradients
            are averaged, missing parts count as zero.

        Returns
        -------
        bool
            False if the push was not applied: the gradient was not finite and was skipped
            (`skipped`), or this worker's lease had expired, so that others no longer waited for it
            (`lapses`): pull, and go on. Leases are per shard: a shard at which the lease had not
            expired has applied its part.

        Raises
        ------
        InvalidArgument
            Other blocks; rows out of range; a gradient that is not finite, if the server's policy
            is "raise"; `Rows` with ``compress`` or ``delay_compensation``. Nothing was sent.
        NotFound
            With `Rows`: no such block.
        Timeout
            A shard was unreachable or stopped for ``timeout`` seconds; other shards may have
            applied the push. If the server may hold pushes (``staleness``, ``workers``), the answer
            of a shard that has received the push is waited for without a limit.
        """
        return self._push(gradients, None, "push")

    def push_pull(
        self, gradients: Slab | Mapping[str, Any | Rows], into: Slab | None = None
    ) -> bool:
        """Push, and pull weights that have the push, in one exchange with each shard.

        A shard sends its weights as soon as it has decided on the push, while others still receive
        theirs. So `push_pull` is faster than `push` and `pull` one after the other.

        Parameters
        ----------
        gradients : Slab, or dict from every block's name to an array
            As for `push`.
        into : Slab, optional
            As for `pull`. Not the slab of the gradients, nor another one that shares its memory.

        Returns
        -------
        bool
            As `push`. The weights are pulled in any case.

        Raises
        ------
        InvalidArgument, NotFound, Closed, Timeout
            As `push` and `pull`. After an error some of the target may be replaced.
        """
        target = self.parameters if into is None else into
        engine_slab("into", target, "push_pull")
        return self._push(gradients, target, "push_pull")

    def _push(
        self, gradients: Slab | Mapping[str, Any | Rows], target: Slab | None, operation: str
    ) -> bool:
        into = None if target is None else target._slab
        if isinstance(gradients, Slab):
            gradients._settle()
            pushed = self._client.push(gradients._slab, into)
        elif not isinstance(gradients, Mapping):
            raise InvalidArgument(
                f"gradients is a {type(gradients).__name__}; give a slab or a dict of arrays",
                operation,
            )
        elif any(isinstance(given, Rows) for given in gradients.values()):
            parts, _ = parts_of(gradients, self.parameters, operation)
            pushed = self._client.push_parts(parts, into)
        else:
            with self._copying:  # until the shards have read the slab
                copy_all(self.gradients, gradients, operation)
                pushed = self._client.push(self.gradients._slab, into)
        applied, lapsed, versions = pushed
        if isinstance(target, Parameters):
            target.version = min(versions)
        self._lapses += lapsed
        self._skipped += not applied and not lapsed
        return applied

    def step(self, feed: Iterable[Any], grad_fn: Callable[[Parameters, Any], Any]) -> Any:
        """Pull, compute the gradients of the feed's next batch, push them.

        Parameters
        ----------
        feed : iterable
            Each call takes the next batch of its iteration.
        grad_fn : callable
            ``grad_fn(parameters, batch)`` returns gradients (a slab, or a dict by block), or
            ``(value, gradients)``.

        Returns
        -------
        Any
            The value, or None.

        Raises
        ------
        StopIteration
            The feed's iteration has ended. The next call begins another one.
        InvalidArgument
            ``grad_fn`` returned something else; also the errors of `pull` and `push`.
        """
        if self._iterating is None or self._iterating[0] is not feed:
            self._iterating = (feed, iter(feed))
        try:
            batch = next(self._iterating[1])
        except StopIteration:
            self._iterating = None
            raise
        self.pull()
        made = grad_fn(self.parameters, batch)
        if not isinstance(made, tuple):
            made = None, made
        if len(made) != 2:
            raise InvalidArgument(
                f"grad_fn returned a tuple of {len(made)}; return gradients, or (value, gradients)",
                "step",
            )
        value, gradients = made
        self.push(gradients)
        return value

    def stats(self) -> list[dict[str, Any]]:
        """Return the same as `ParameterServer.stats`."""
        stats: list[dict[str, Any]] = json.loads(self._client.stats())
        return stats

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def lapses(self) -> int:
        """Pushes that were dropped because this worker's lease had expired."""
        return self._lapses

    @property
    def skipped(self) -> int:
        """Pushes that were not finite and were skipped."""
        return self._skipped

    def close(self) -> None:
        """Leave the server: no shard waits for this worker any more. Idempotent.

        A call of another thread ends within a second and raises `Closed`. Its push is not applied
        later, but shards that have answered already have applied it.
        """
        self._closing.set()
        self._client.close()

    def __del__(self) -> None:
        closing = getattr(self, "_closing", None)
        if closing is not None:
            closing.set()

    def __repr__(self) -> str:
        return f"<penstock.train.ParameterClient {self.name!r} of {self._client.shards} shards>"


def _beat(
    client: weakref.ref[ParameterClient], lease: float, closing: threading.Event
) -> None:  # in a thread
    pause = min(max(lease / _BEATS_IN_LEASE, _FEWEST), _MOST)
    while not closing.wait(pause):
        its = client()
        if its is None:
            return
        with contextlib.suppress(Error):  # the next push or pull reports what is wrong
            its._client.beat()
        del its


@old_names(retry="timeout")
def connect(
    addresses: str | Sequence[str] | Resolver,
    *,
    name: str = "",
    worker_id: int | None = None,
    secret: str | None = None,
    encrypt: bool | None = None,
    heartbeat: bool = False,
    timeout: float = 60.0,
    compress: Literal["float16", "bfloat16", "top_k"] | None = None,
    top_k: float = 0.01,
) -> ParameterClient:
    """Become a worker of a parameter server.

    Parameters
    ----------
    addresses : str or list of str, or Resolver
        `ParameterServer.addresses`: one for each shard, in any order. A resolver finds shards that
        move to other addresses.
    name : str
        Shown in statistics; averages of gradients add up workers in the order of their names.
        Default: the process id.
    worker_id : int, optional
        A number above 0 that names this worker beyond the client object, so that a process that is
        started again counts no push twice: see `ParameterClient.sequence`. A client takes over from
        an earlier one with the same id, whose calls then raise `InvalidArgument`. Servers remember
        up to 1,024 such ids, also after their clients were closed. Default: a random number, which
        the server forgets when the client is closed.
    secret : str, optional
        The server's secret. None: the server was given none, and is on this host.
    encrypt : bool, optional
        Whether to encrypt TCP connections. None: those with other hosts, and where the server asks
        for it. If the server says the opposite, connecting fails before anything is sent.
    heartbeat : bool
        Whether a thread tells the shards that this worker is alive, so that a step may take longer
        than the server's ``lease``. Other workers then wait for it as long as its process runs.
    timeout : float
        Seconds that a shard may be unreachable or silent before a call raises `Timeout`.
    compress : {"float16", "bfloat16", "top_k"}, optional
        Compression of gradients. float16, bfloat16: numbers are rounded (numbers below 3e-8 become
        0 in float16). top_k: only the numbers of largest magnitude are sent, a fraction ``top_k``
        of each shard's; the rest is added to the next gradient.

    Raises
    ------
    InvalidArgument
        An invalid argument; addresses of several servers, or of some shards only; another secret,
        or another `encrypt`; no secret for a server on another host.
    Timeout
        No answer for ``timeout`` seconds.
    """
    if not isinstance(compress, (str, type(None))) or compress not in _ENCODINGS:
        raise InvalidArgument(
            f"compress is {compress!r}; there are 'float16', 'bfloat16' and 'top_k'", "connect"
        )
    return ParameterClient(
        _engine.ParameterClient(
            _resolver_of(addresses),
            string("name", name, "connect"),
            0
            if worker_id is None
            else integer("worker_id", worker_id, 1, (1 << 64) - 1, operation="connect"),
            "" if secret is None else string("secret", secret, "connect"),
            None if encrypt is None else flag("encrypt", encrypt, "connect"),
            real("timeout", timeout, "connect"),
            _ENCODINGS[compress],
            real("top_k", top_k, "connect"),
        ),
        flag("heartbeat", heartbeat, "connect"),
    )


def _resolver_of(addresses: str | Sequence[str] | Resolver) -> _engine.ShardResolver:
    if hasattr(addresses, "locate"):
        resolver: Any = addresses
        shards = integer("shards", resolver.shards, 1, (1 << 32) - 1, operation="connect")
        return _engine.ShardResolver.asking(resolver.locate, shards)
    return _engine.ShardResolver.fixed(addresses_of("addresses", addresses, "connect"))
