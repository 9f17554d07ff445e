"""Where remote workers are: what a Loader's `workers=` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _engine
from ..base.arguments import integer
from ..errors import InvalidArgument
from .locality import Locality

_OPERATION = "remote.workers"
_LEAST_SECRET = 16
# Tickets that a worker has in flight: it makes one while the result of the other is sent.
IN_FLIGHT = 2


class Host(ABC):
    """A server of remote workers, for one Loader. Its methods are called by one thread."""

    title: str
    workers: int  # that it is asked for
    key: str = ""  # the server has the data set already, under this key

    @abstractmethod
    def find(self) -> tuple[str, bytes]:
        """Return the server's address and secret, or raise an exception if it is not there.

        `Closed`: it never comes back. After any other exception it is called again.
        """


class RemoteWorkers(ABC):
    """Workers on other hosts: for ``workers=`` of a `penstock.Loader`, alone or in a list.

    Attributes
    ----------
    count : int
        How many.
    locality : Locality or None
        Which files a sample is read from; None: all hosts see all files.
    shared : bool
        Loaders with equal data sets use the same workers of a server.
    """

    count: int
    locality: Locality | None = None
    shared: bool = False

    @abstractmethod
    def open(self, payload: bytes, files: bytes) -> list[Host]:
        """Start, or find, the hosts for one Loader, whose pickled data set is `payload`."""

    def close(self, hosts: list[Host]) -> None:  # noqa: B027
        """Release the hosts of `open`. Any thread."""

    def __add__(self, other: Any) -> list[Any]:
        return [self, *_listed(other)]

    def __radd__(self, other: Any) -> list[Any]:
        return [*_listed(other), self]


def workers(
    addresses: str | Sequence[str], count: int, *, secret: bytes, locality: Any = None
) -> RemoteWorkers:
    """Name workers of servers that run already.

    Parameters
    ----------
    addresses : str or sequence of str
        The servers' addresses, ``"tcp://host:port"``. A server may be started later.
    count : int
        How many workers, together. They are distributed evenly over the servers.
    secret : bytes
        The servers' secret, at least 16 bytes that cannot be guessed.
    locality : callable, list or dict, optional
        For a data set with ``__getitem__`` whose files only some hosts have: ``locality(index)`` or
        ``locality[index]`` is the path, or an iterable of paths, that the sample is read from. A
        batch is made on a host that has the files of all its samples. Called in the Loader's
        process, in any of its threads.

    Returns
    -------
    RemoteWorkers
        For ``penstock.Loader(dataset, workers=...)``. ``workers=[2, remote]``, or ``2 + remote``,
        adds two processes of this host.

    Raises
    ------
    InvalidArgument
        An argument is invalid.
    """
    given = [addresses] if isinstance(addresses, str) else list(addresses)
    if not given or not all(isinstance(address, str) for address in given):
        raise InvalidArgument(
            f'addresses are {addresses!r}; give texts such as "tcp://10.0.0.7:7000"', _OPERATION
        )
    most = _engine.MAX_WORKERS // IN_FLIGHT
    count = integer("count", count, 1, most, operation=_OPERATION)
    made = _Servers(given, count, checked_secret(secret, _OPERATION))
    if locality is not None:
        made.locality = Locality(locality, _OPERATION)
    return made


def checked_secret(secret: Any, operation: str) -> bytes:
    """Return the secret as bytes, or raise `InvalidArgument`."""
    if not isinstance(secret, (bytes, bytearray)) or len(secret) < _LEAST_SECRET:
        raise InvalidArgument(
            f"a secret has at least {_LEAST_SECRET} bytes, such as secrets.token_bytes(32)",
            operation,
        )
    return bytes(secret)


def split_workers(given: Any) -> tuple[Any, list[RemoteWorkers]]:
    """Return this host's workers of ``workers=``, as it was given, and the remote ones.

    Raises
    ------
    InvalidArgument
        A list has more than one number.
    """
    if isinstance(given, RemoteWorkers):
        return 0, [given]
    if not isinstance(given, (list, tuple)):
        return given, []
    remote = [each for each in given if isinstance(each, RemoteWorkers)]
    local = [each for each in given if not isinstance(each, RemoteWorkers)]
    if len(local) > 1 or not remote:
        raise InvalidArgument(
            f"workers is {given!r}; a list has remote workers and at most one number, of processes "
            "of this host",
            "Loader",
        )
    return (local[0] if local else 0), remote


def shares(count: int, hosts: int) -> list[int]:
    """Distribute `count` workers over hosts, the first ones getting more."""
    return [count // hosts + (i < count % hosts) for i in range(hosts)]


def _listed(other: Any) -> list[Any]:
    return list(other) if isinstance(other, (list, tuple)) else [other]


@dataclass
class _Server(Host):
    title: str
    workers: int
    secret: bytes

    def find(self) -> tuple[str, bytes]:
        return self.title, self.secret


class _Servers(RemoteWorkers):
    def __init__(self, addresses: list[str], count: int, secret: bytes) -> None:
        self._addresses = addresses
        self._secret = secret
        self.count = count

    def open(self, payload: bytes, files: bytes) -> list[Host]:
        each = zip(self._addresses, shares(self.count, len(self._addresses)), strict=True)
        return [_Server(address, share, self._secret) for address, share in each if share]

    def __repr__(self) -> str:
        return f"penstock.remote.workers({self._addresses!r}, {self.count})"
