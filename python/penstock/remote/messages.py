"""The messages of a Loader and a server of remote workers: a JSON text, and bytes.

A connection begins with the Loader's ``open`` and is one Loader's. Both ends run the same version
of penstock. The loader sends:

==========  ================================================  =================================
do          fields                                            bytes
==========  ================================================  =================================
open        version, workers, first, settings, key, sizes     the data set, then the files of a
                                                              Dataset; none if the server has
                                                              them under `key`
update      version, keep                                     changed attributes of the data set
replace     worker
have        paths                                             (which of these files are there?)
==========  ================================================  =================================

The server sends:

==========  ================================================  =================================
do          fields                                            bytes
==========  ================================================  =================================
refused     why
worker      worker, port, local                               (it can be connected to: at the
                                                              port, or on its own host at the
                                                              Unix socket `local`; "": none)
ended       worker, how, running, call                        (the ticket in the place
                                                              running - 1 was run; 0: none)
files       paths, there                                      (of each path)
failed      worker                                            a packed exception
hopeless    how, said
leaving                                                       (it gets no more tickets)
==========  ================================================  =================================

The end of the connection ends the Loader's workers.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import Closed, DataLoss


def send(connection: Any, body: bytes = b"", **message: Any) -> None:
    """Send a message. Raises `Closed` if the other end is gone."""
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
