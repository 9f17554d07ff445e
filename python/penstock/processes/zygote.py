"""The fork server: a process that has imported every worker's modules, and forks on request.

It holds no dataset, and its one other thread only waits for the parent's end, so forking it is
safe and cheap. It ends when its parent does or closes the socket.

Messages are one packet each, marshalled. Request ``("start",)`` carries descriptors: the worker's
configuration, then those in its ``order``; the answer is ``(serial, pid)`` with the pidfd. Request
``("status", serial)``: the answer is ``(status,)`` as `os.waitpid` gives it, or ``(None,)``.
Request ``("kill", serial)`` is for a parent that could not receive the pidfd; the answer is ``()``.
The answer to a failed request is ``("error", text)``.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import select
import signal
import socket
import warnings
from typing import Any

from . import bootstrap

MOST_DESCRIPTORS = 250  # Linux passes 253 at a time


def main(_index: int, fds: dict[str, int], _settings: dict[str, Any]) -> None:
    """Serve until the parent has gone. Runs as the main function of a spawned process."""
    import numpy.random  # noqa: F401

    from .. import _engine  # noqa: F401
    from . import payload  # noqa: F401

    bootstrap.restore_stderr()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the marked pages
    with socket.socket(fileno=fds["socket"]) as link:
        _Server(link).serve()


class _Server:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._children: dict[int, tuple[int, int]] = {}  # pidfd: (serial, pid)
        self._statuses: dict[int, int] = {}
        self._started = 0

    def serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._reap(fd)
                elif fd == self._link.fileno():
                    try:
                        if not self._answer():
                            return
                    except (BrokenPipeError, ConnectionResetError):
                        return  # the parent did not wait for the answer

    def _reap(self, pidfd: int) -> None:
        serial, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        self._statuses[serial] = os.waitpid(pid, 0)[1]

    def _answer(self) -> bool:
        message, fds, _, _ = socket.recv_fds(
            self._link, 4096, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return False
        request = marshal.loads(message)
        if request[0] == "status":
            self._link.send(marshal.dumps((self._status(request[1]),)))
            return True
        if request[0] == "kill":
            pidfd = self._pidfd(request[1])
            if pidfd is not None:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self._link.send(marshal.dumps(()))
            return True
        try:
            serial, pid, pidfd = self._fork(fds)
        except OSError as error:
            self._link.send(marshal.dumps(("error", str(error))))
        else:
            socket.send_fds(self._link, [marshal.dumps((serial, pid))], [pidfd])
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _pidfd(self, serial: int) -> int | None:
        return next((fd for fd, (other, _) in self._children.items() if other == serial), None)

    def _status(self, serial: int) -> int | None:
        pidfd = self._pidfd(serial)
        # The request may arrive before the poll has reported the end of the process.
        if pidfd is not None and select.select([pidfd], [], [], 0)[0]:
            self._reap(pidfd)
        return self._statuses.pop(serial, None)

    def _fork(self, fds: list[int]) -> tuple[int, int, int]:
        config = marshal.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0)) if fds else {}
        if len(config.get("order", ())) != len(fds):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        numbers = dict(zip(config["order"][1:], fds[1:], strict=True))
        with warnings.catch_warnings():
            # The other threads are the one that waits for the parent, and threads of a linear
            # algebra library, which supports forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._link.detach()
            bootstrap.after_server_fork(config, numbers)
        pidfd = os.pidfd_open(pid)
        self._started += 1
        self._children[pidfd] = (self._started, pid)
        self._poll.register(pidfd, select.POLLIN)
        return self._started, pid, pidfd
