"""A worker of a parameter server: pulls weights, pushes gradients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from .. import _engine
from ..base.arguments import addresses as addresses_of
from ..base.arguments import flag, old_names, real, string
from ..base.conventions import Closing
from ..errors import InvalidArgument
from .parameters import Parameters, Slab, copy_all, engine_slab
from .steps import Rows, parts_of

__all__ = ["ParameterClient", "connect"]

_ENCODINGS = {None: 0, "float16": 1, "bfloat16": 2, "top_k": 3}


class ParameterClient(Closing):
    """A worker of a `ParameterServer`. `connect` makes one.

    Every push counts once at every shard, also if a line is cut or a shard is started anew in
    between: the client connects again and repeats what was not answered.

    Any thread, one call at a time. A forked child connects for itself. A context manager that
    closes it.
    """

    def __init__(self, client: _engine.ParameterClient) -> None:
        self._client = client
        self._parameters: Parameters | None = None
        self._gradients: Slab | None = None
        self._iterating: tuple[Any, Iterator[Any]] | None = None
        self._lapses = 0
        self._skipped = 0

    @property
    def parameters(self) -> Parameters:
        """Weights of this worker: what `pull` fills unless told otherwise."""
        if self._parameters is None:
            made = Parameters.__new__(Parameters)
            Slab.__init__(made, self._client.slab(False))
            self._parameters = made
        return self._parameters

    @property
    def gradients(self) -> Slab:
        """Room for gradients that shards on this host read in place."""
        if self._gradients is None:
            self._gradients = Slab(self._client.slab(True))
        return self._gradients

    def pull(self, into: Slab | None = None) -> list[int]:
        """Copy the weights as they are now, from every shard for itself.

        Parameters
        ----------
        into : Slab, optional
            Parameters, or another slab of the same blocks; `parameters` by default.

        Returns
        -------
        list of int
            Each shard's version: every update up to it is in the weights, parts may be newer.

        Raises
        ------
        InvalidArgument, Closed
            Other blocks, or no slab; another server has the address now; the client was closed.
        Timeout
            A shard was gone, or stopped, for ``timeout`` seconds.
        """
        target = self.parameters if into is None else into
        versions = self._client.pull(engine_slab("into", target, "pull"))
        if isinstance(target, Parameters):
            target.version = min(versions)
        return versions

    def push(self, gradients: Slab | Mapping[str, Any | Rows]) -> bool:
        """Hand gradients to all shards; return when they are applied, as the server's mode says.

        Parameters
        ----------
        gradients : Slab, or dict from every block's name to an array
            `gradients`, or another shared slab, is read in place by shards on this host; what is
            not shared is copied first. With `Rows` among the values, only what is in the dict
            travels and is touched, the optimizer's state included: those rows, and whole blocks
            beside them; blocks that are not named are left as they are. Where gradients are
            averaged, what a worker leaves out counts as zero.

        Returns
        -------
        bool
            False if it was not applied: it was not finite and is skipped (`skipped`), or this
            worker's lease had ended, so that others no longer waited for it (`lapses`): pull, and
            go on. Each shard knows of its own lease: one that heard of this worker in time has
            applied its part even so.

        Raises
        ------
        InvalidArgument
            Other blocks; rows that are not there; a gradient that is not finite, where the server's
            policy is to raise; `Rows` with ``compress``, or of a server with
            ``delay_compensation``. Nothing was sent.
        NotFound
            `Rows` beside a block that there is not.
        Timeout
            A shard was gone, or stopped, for ``timeout`` seconds; others may have applied it. Where
            pushes may be held (``staleness``, ``workers``), one that a shard was given is waited
            for as long as that takes, also while the shard is stopped.
        """
        if isinstance(gradients, Slab):
            gradients._settle()
            slab = gradients
        elif isinstance(gradients, Mapping):
            if any(isinstance(given, Rows) for given in gradients.values()):
                parts, _ = parts_of(gradients, self.parameters, "push")
                return self._count(*self._client.push_parts(parts))
            slab = self.gradients
            copy_all(slab, gradients, "push")
        else:
            raise InvalidArgument(
                f"gradients is a {type(gradients).__name__}; give a slab or a dict of arrays",
                "push",
            )
        return self._count(*self._client.push(slab._slab))

    def _count(self, applied: bool, lapsed: bool, _: list[int]) -> bool:
        self._lapses += lapsed
        self._skipped += not applied and not lapsed
        return applied

    def step(self, feed: Iterable[Any], grad_fn: Callable[[Parameters, Any], Any]) -> Any:
        """Pull, compute the gradients of the feed's next batch, push them.

        Parameters
        ----------
        feed : iterable
            It is asked for its batches one after the other, from one call to the next.
        grad_fn : callable
            ``grad_fn(parameters, batch)`` gives a dict of gradients by blocks or a slab, or a pair
            of any value and that.

        Returns
        -------
        Any
            The value, if it gave one.

        Raises
        ------
        StopIteration
            The feed is over, as ``next(feed)`` says it. The next call begins anew.
        InvalidArgument
            What ``grad_fn`` gave is no such thing; and what `pull` and `push` raise.
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
        """What `ParameterServer.stats` says."""
        said: list[dict[str, Any]] = json.loads(self._client.stats())
        return said

    @property
    def name(self) -> str:
        return self._client.name

    @property
    def lapses(self) -> int:
        """Pushes that came after this worker's lease had ended, and were dropped."""
        return self._lapses

    @property
    def skipped(self) -> int:
        """Pushes that were not finite and were skipped."""
        return self._skipped

    def close(self) -> None:
        """Leave: nobody waits for this worker any more. Any number of times."""
        self._client.close()

    def __repr__(self) -> str:
        return f"<penstock.train.ParameterClient {self.name!r} of {self._client.shards} shards>"


@old_names(retry="timeout")
def connect(
    addresses: str | Sequence[str],
    *,
    name: str = "",
    secret: str | None = None,
    encrypt: bool = False,
    timeout: float = 60.0,
    compress: Literal["float16", "bfloat16", "top_k"] | None = None,
    top_k: float = 0.01,
) -> ParameterClient:
    """Become a worker of a parameter server.

    Parameters
    ----------
    addresses : str or list of str
        `ParameterServer.addresses`: those of all shards, in any order.
    name : str
        For statistics; and where gradients are averaged, workers come in the order of their names.
        The process's number by default.
    secret : str, optional
        The server's.
    encrypt : bool
        As the server does: over TCP, nothing is said to one that does not, and one that does
        refuses who does not.
    timeout : float
        Seconds that a shard may be gone, or say nothing, before a call gives up.
    compress : {"float16", "bfloat16", "top_k"}, optional
        How gradients travel. float16, bfloat16: every number rounded; what rounding takes is lost
        (float16 makes 0 of what is below 3e-8). top_k: only the largest by magnitude, a part
        ``top_k`` of each shard's; what is left out is added to the next gradient.

    Raises
    ------
    InvalidArgument
        An argument that cannot be; addresses of several servers, or not of all shards; another
        secret, or only one end that encrypts.
    Timeout
        Nobody answered for ``timeout`` seconds.
    """
    if not isinstance(compress, (str, type(None))) or compress not in _ENCODINGS:
        raise InvalidArgument(
            f"compress is {compress!r}; there are 'float16', 'bfloat16' and 'top_k'", "connect"
        )
    return ParameterClient(
        _engine.ParameterClient(
            addresses_of("addresses", addresses, "connect"),
            string("name", name, "connect"),
            "" if secret is None else string("secret", secret, "connect"),
            flag("encrypt", encrypt, "connect"),
            real("timeout", timeout, "connect"),
            _ENCODINGS[compress],
            real("top_k", top_k, "connect"),
        )
    )
