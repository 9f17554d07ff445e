"""Main functions of the workers of test_launch.py. Answers go to the descriptor "answer"."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from typing import Any


def _answer(fds: dict[str, int], value: Any) -> None:
    os.write(fds["answer"], json.dumps(value).encode() + b"\n")


def describe(index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    """Answer with a description of the worker's process."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    _answer(
        fds,
        {
            "index": index,
            "settings": settings,
            "names": sorted(fds),
            "inheritable": [name for name, fd in fds.items() if os.get_inheritable(fd)],
            "links": links,
            "numbers": fds,
            "path": sys.path,
            "argv": sys.argv,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "modules": sorted(sys.modules),
            "main": getattr(sys.modules["__main__"], "__file__", None),
        },
    )


def wait(_index: int, fds: dict[str, int], _settings: dict[str, Any]) -> None:
    """Say hello, then wait to be killed."""
    _answer(fds, os.getpid())
    signal.pause()


def exit_with(_index: int, _fds: dict[str, int], settings: dict[str, Any]) -> None:
    sys.exit(settings["code"])


def kill_itself(_index: int, _fds: dict[str, int], settings: dict[str, Any]) -> None:
    faulthandler.disable()  # pytest's, which a fork inherits
    os.kill(os.getpid(), settings["signal"])


def fail(_index: int, _fds: dict[str, int], _settings: dict[str, Any]) -> None:
    print("some words", file=sys.stderr)
    raise LookupError("the worker's own trouble")


def speak(_index: int, fds: dict[str, int], _settings: dict[str, Any]) -> None:
    from penstock.processes import bootstrap

    print("before", file=sys.stderr)
    os.write(2, b"from below\n")
    bootstrap.restore_stderr()
    print("after", file=sys.stderr)
    _answer(fds, "done")


def read_dataset(_index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    """Rebuild a payload, and answer with the value of an expression over it."""
    from penstock.processes import payload

    dataset = payload.unpack(fds["payload"])
    if "update" in fds:
        payload.apply(dataset, fds["update"])
    _answer(fds, eval(settings["expression"], {"dataset": dataset}))
