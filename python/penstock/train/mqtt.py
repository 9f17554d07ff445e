"""An MQTT client: a source of `Online`, and a place for its results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from .. import _engine
from ..base.arguments import integer, path, real, several, string
from ..base.conventions import Closing, shown
from ..errors import InvalidArgument

__all__ = ["MqttClient", "mqtt"]

_VERSIONS = {"3.1.1": False, "5": True}
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_FLUSH_SECONDS = 10.0


class MqttClient(Closing):
    """A client of an MQTT broker. `mqtt` makes one.

    It is the source of one `Online`, receives its results as ``on_batch=``, or publishes messages
    of the user. It connects at the first of these. After a lost connection it connects again,
    without end, at growing intervals up to 10 seconds.

    Threads: any. A forked child must make its own. A context manager that closes.
    """

    def __init__(self, client: _engine.MqttClient, where: str, topics: list[str], qos: int) -> None:
        self._message_source = client  # what Online starts
        self._where, self._topics, self._qos = where, topics, qos

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, or filters of topics, that it was made with."""
        return tuple(self._topics)

    def publish(self, topic: str, payload: bytes | str, qos: int | None = None) -> None:
        """Publish a message.

        Waits for the first connection. QoS 0: sent if there is a connection, and counted as
        ``unsent`` if not. QoS 1 and 2: kept and sent until the broker has acknowledged it; waits
        while 1,000 messages are on their way.

        Parameters
        ----------
        topic : str
            Without wildcards.
        payload : bytes or str
            A str is sent as UTF-8. Of a NumPy array: its bytes.
        qos : {0, 1, 2}, optional
            Default: the client's.

        Raises
        ------
        InvalidArgument
            The topic has a wildcard; the payload is no bytes or str; the message is longer than 256
            MB, or than the broker takes (which it tells in version 5).
        Closed
            The client was closed; or it gave up, for the reason in the error: a wrong password, a
            certificate that is not trusted, no first connection in time.
        """
        level = self._qos if qos is None else integer("qos", qos, 0, 2, operation="publish")
        try:  # bytes(5) would be five zeros
            data = payload.encode() if isinstance(payload, str) else bytes(memoryview(payload))
        except (TypeError, UnicodeEncodeError):
            raise InvalidArgument(
                f"the payload is {payload!r:.100}; give bytes, or a str", "publish"
            ) from None
        self._message_source.start_publishing()
        self._message_source.publish(string("topic", topic, "publish"), data, level)

    def stats(self) -> dict[str, Any]:
        """Return what the connection has done.

        Returns
        -------
        dict
            ``connected`` (and subscribed), ``reconnects``; messages ``received``, their ``bytes``
            of payload, ``acknowledged``, ``duplicates`` (sent again by the broker), ``published``,
            ``on_their_way`` (published, not yet acknowledged), ``unsent`` (without a connection, or
            refused); ``error`` if there was one.
        """
        stats: dict[str, Any] = json.loads(self._message_source.state())
        return stats

    def close(self) -> None:
        """Send what was published, at most for 10 seconds, and disconnect. Idempotent."""
        self._message_source.flush(_FLUSH_SECONDS)
        self._message_source.stop()

    def __repr__(self) -> str:
        return shown(self, self._where, *self._topics, qos=self._qos)


def mqtt(
    url: str,
    topics: str | Sequence[str] | None = None,
    *,
    qos: int = 1,
    version: str = "3.1.1",
    user: str | None = None,
    password: str | None = None,
    client_id: str | None = None,
    clean_start: bool | None = None,
    session_expiry: float = 3600.0,
    keep_alive: float = 60.0,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    connect_timeout: float = 30.0,
) -> MqttClient:
    """Return a client of an MQTT broker: a source of `Online`.

    A message of QoS 1 or 2 is acknowledged to the broker when `Online` says so: once it is in the
    log, or once it was trained on. With a ``client_id`` the broker keeps messages while the client
    is away, and sends those again that were not acknowledged: then nothing is lost when the process
    is killed.

    Parameters
    ----------
    url : str
        ``mqtt://host/topic``, ``mqtts://user:password@host:port/topic``. Special characters of the
        user, the password and the topic are escaped by ``%``, as in every URL; ``+``, ``#``, ``?``
        and ``$`` of a topic are not special.
    topics : str or sequence of str, optional
        More topics. ``sensors/+/value``: any one level; ``sensors/#``: all below; ``$share/group/
        sensors/#``: each message goes to one client of the group.
    qos : {0, 1, 2}
        The most of the messages that are received; and of `MqttClient.publish`.
    version : {"3.1.1", "5"}
        The protocol.
    user, password : str, optional
        Instead of those of the URL.
    client_id : str, optional
        A name of the client at the broker, of no other client. Default: the broker's choice.
    clean_start : bool, optional
        Whether the broker forgets what it has kept. Default: without a ``client_id``.
    session_expiry : float
        Version 5: for how many seconds the broker keeps messages while the client is away.
    keep_alive : float
        Seconds, 0 to 65535. A broker that is silent for this time is lost. 0: never.
    ca, certificate, key : path, optional
        PEM files for ``mqtts``: certificates to trust, instead of the system's; the client's own,
        and its key.
    connect_timeout : float
        Seconds for the first connection; then `Online` raises `Closed`. Later connections are tried
        without end.

    Raises
    ------
    InvalidArgument
        An invalid argument.

    Examples
    --------
    >>> source = train.mqtt("mqtt://localhost/sensors/+/value", client_id="trainer")
    >>> live = train.Online(source, prepare, model, spool="run/spool")
    """
    where = _parsed(url)
    filters = [where.topic] if where.topic else []
    if topics is not None:
        more = [topics] if isinstance(topics, str) else several("topics", topics, "str", "mqtt")
        filters += [string("topics", topic, "mqtt") for topic in more]
    if str(version) not in _VERSIONS:
        raise InvalidArgument(f'version is {version!r}; give "3.1.1" or "5"', "mqtt")
    files = {"ca": ca, "certificate": certificate, "key": key}
    if where.scheme == "mqtt" and (given := [name for name in files if files[name] is not None]):
        raise InvalidArgument(f"{given[0]} is for mqtts://, and the URL is mqtt://", "mqtt")
    if (certificate is None) != (key is None):
        raise InvalidArgument("certificate and key go together; give both", "mqtt")
    name = "" if client_id is None else string("client_id", client_id, "mqtt")
    client = _engine.MqttClient.make(
        host=where.host,
        port=where.port,
        topics=filters,
        qos=integer("qos", qos, 0, 2, operation="mqtt"),
        version5=_VERSIONS[str(version)],
        client_id=name,
        clean_start=not name if clean_start is None else bool(clean_start),
        session_expiry_s=_whole_seconds("session_expiry", session_expiry, (1 << 32) - 1),
        keep_alive_s=_whole_seconds("keep_alive", keep_alive, 65535),
        user=where.user if user is None else string("user", user, "mqtt"),
        password=where.password if password is None else string("password", password, "mqtt"),
        tls=where.scheme == "mqtts",
        **{each: "" if file is None else path(file, "mqtt") for each, file in files.items()},
        connect_timeout_s=real("connect_timeout", connect_timeout, "mqtt"),
    )
    return MqttClient(client, f"{where.scheme}://{where.host}:{where.port}", filters, qos)


class _Url(NamedTuple):
    scheme: str
    host: str
    port: int
    user: str
    password: str
    topic: str


def _parsed(url: Any) -> _Url:
    """The parts of a URL. Errors do not show it: it may have a password."""
    scheme, separator, rest = string("url", url, "mqtt").partition("://")
    if not separator or scheme not in _PORTS:
        raise InvalidArgument("the URL is not of the form mqtt://host/topic or mqtts://...", "mqtt")
    authority, _, topic = rest.partition("/")
    login, _, address = authority.rpartition("@")
    user, _, password = login.partition(":")
    host, colon, port = address, "", ""
    if address.startswith("["):
        host, _, after = address[1:].partition("]")
        colon, port = after[:1], after[1:]
    elif ":" in address:
        host, colon, port = address.partition(":")
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host:
        raise InvalidArgument(f"the URL has no host; write {scheme}://host/topic", "mqtt")
    if colon and not 0 < number < 65536:
        raise InvalidArgument(f"the port in the URL is {port!r}; give 1 to 65535", "mqtt")
    return _Url(
        *(scheme, host, number or _PORTS[scheme]),
        *(unquote(user), unquote(password), unquote(topic)),
    )


def _whole_seconds(name: str, value: Any, most: int) -> int:
    seconds = real(name, value, "mqtt")
    if not 0 <= seconds <= most:
        raise InvalidArgument(f"{name} is {value!r}; give seconds, 0 to {most}", "mqtt")
    return math.ceil(seconds)
