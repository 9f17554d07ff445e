"""The messages of a Loader and a server of remote workers: a JSON text, and bytes.

A connection begins with the Loader's ``open`` and is one Loader's. Both ends run the same version
of penstock. The Loader sends:

==========  ================================================  =================================
do          fields                                            bytes
==========  ================================================  =================================
open        version, workers, first, settings, key, share,    (`key`: the server has the data
            title, size                                       set under it, or ""; `share`: the
                                                              key of a pool of several Loaders,
                                                              or "")
dataset     size                                              `size` bytes of the data set, then
                                                              the files of a Dataset
update      version, keep                                     changed attributes of the data set
replace     worker
have        paths                                             (which of these files are there?)
==========  ================================================  =================================

The server sends:

==========  ================================================  =================================
do          fields                                            bytes
==========  ================================================  =================================
refused     why
send                                                          (the data set is to be sent)
starting                                                      (no worker is ready yet; every 10 s)
unlike                                                        (a pool has a data set of the same
                                                              title and size, and other bytes)
worker      worker, port, local, loader                       (it can be connected to: at the
                                                              port, or on its own host at the
                                                              Unix socket `local`; "": none.
                                                              `loader`: the Loader's number)
ended       worker, how, running, call                        (the ticket in the place
                                                              running - 1 was run; 0: none of
                                                              this Loader)
files       paths, there                                      (of each path)
failed      worker                                            a packed exception
hopeless    how, said
leaving                                                       (it gets no more tickets)
==========  ================================================  =================================

The end of the connection ends the Loader's workers, unless other Loaders share them. A connection
to a worker begins with a message of the Loader: ``loader``, its number, and ``settings``.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import Closed, DataLoss


def send(connection: Any, body: bytes = b"", **message: Any) -> None:
    """Send a message. Raises `Closed` if the connection has ended."""
    connection.send(json.dumps(message).encode(), body)


def receive(connection: Any, timeout: float | None = None) -> tuple[dict[str, Any], bytes]:
    """Return the next message. Raises `Closed` at the end, `Timeout`, or `DataLoss`."""
    received = connection.receive(timeout)
    if received is None:
        raise Closed("the other host has ended the connection", "remote")
    head, body = received
    try:
        message = json.loads(head)
    except ValueError as error:
        raise DataLoss("a message that is no JSON", "remote") from error
    if not isinstance(message, dict):
        raise DataLoss("a message that is no dict", "remote")
    return message, body
