"""``penstock serve WEIGHTS``: a parameter server that runs until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..processes.child import describe_exit, spawn, start_child
from . import Failed, secrets
from .shards import optimizers

_CLOSING_SECONDS = 60.0
# A process that ends within these seconds after it began to serve, so many times in a row, is not
# restarted.
_SOON_SECONDS, _SOON_TIMES = 5.0, 5


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve weights to workers that push gradients",
        description="A parameter server: workers connect (train.connect), pull weights and push "
        "gradients. Prints an address per shard. Ends in good order at Ctrl-C or SIGTERM.",
    )
    parser.add_argument("weights", metavar="WEIGHTS", help="a safetensors file: how it begins")
    add = parser.add_argument
    add("--optimizer", default="sgd", metavar="NAME", help="sgd, momentum, adam, adamw, ...")
    add("--lr", type=float, help="the learning rate")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="another hyper-parameter")
    add("--shards", type=int, default=1, metavar="N", help="pieces that take pushes side by side")
    add("--staleness", type=int, metavar="S", help="pushes that a worker may be ahead; 0: none")
    add("--lease", type=float, metavar="SECONDS", help="how long others wait for a silent worker")
    add("--workers", type=int, metavar="N", help="nothing is applied before so many are there")
    add(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help="host:port (0: a free one) or unix:@name; for all shards, or once for each; without "
        "it only processes of this user on this host can connect",
    )
    secrets.add_options(parser)
    add("--snapshot", metavar="FOLDER", help="what is kept, and where it goes on from")
    add("--snapshot-seconds", type=float, metavar="S", help="between two snapshots (60)")
    add("--save", metavar="FILE", help="where the weights go in the end (safetensors)")
    add("--json", action="store_true", help="print one JSON object when it serves")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    settings = _settings(options)
    failed_soon = 0
    with _stops() as stop:
        while True:
            process = _Process(settings)
            try:
                ready = process.wait_until_ready(stop)
                if ready is None:
                    return process.close()
                _say(options, ready, process.pid, again="addresses" in settings)
                settings["addresses"] = settings["server"]["listen"] = ready["addresses"]
                began = time.monotonic()
                if process.wait(stop):
                    return process.close()
                how = process.ending
            finally:
                process.kill()
            failed_soon = failed_soon + 1 if time.monotonic() - began < _SOON_SECONDS else 0
            if not options.snapshot:
                raise Failed(
                    f"the server process ended ({how}), and what workers pushed is lost; with "
                    "--snapshot FOLDER another one continues from there"
                )
            if failed_soon == _SOON_TIMES:
                raise Failed(f"the server process ended ({how}), {failed_soon} times in a row")
            print(
                f"penstock: the server process ended ({how}); another one continues from "
                f"{options.snapshot}",
                file=sys.stderr,
                flush=True,
            )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Check the arguments, and return the server process's configuration; starts nothing."""
    known = optimizers()
    if options.optimizer not in known:
        raise Failed(f"no optimizer {options.optimizer!r}; there are {', '.join(known)}", 2)
    if not Path(options.weights).is_file():
        raise Failed(f"{options.weights}: no such file", 2)
    if options.snapshot_seconds is not None and not options.snapshot:
        raise Failed("--snapshot-seconds needs --snapshot FOLDER, the folder for snapshots", 2)
    if options.save:
        _check_save(Path(options.save))
    hyper: dict[str, Any] = {} if options.lr is None else {"lr": options.lr}
    for pair in options.set:
        name, equals, value = pair.partition("=")
        try:
            hyper[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise Failed(f"--set {pair}: give NAME=NUMBER, such as --set weight_decay=0.01", 2)
    try:
        known[options.optimizer](**hyper)
    except TypeError:
        names = ", ".join(
            field.name for field in dataclasses.fields(known[options.optimizer]) if field.init
        )
        raise Failed(
            f"{options.optimizer} has no such hyper-parameter; it has {names}", 2
        ) from None
    except Exception as error:
        raise Failed(f"{options.optimizer}: {error}", 2) from None
    server = {
        "shards": options.shards,
        "processes": True,
        "staleness": options.staleness,
        "lease": options.lease,
        "workers": options.workers,
        "listen": options.listen[0] if options.listen and len(options.listen) == 1 else None,
        "encrypt": options.encrypt,
        "snapshots": options.snapshot,
        "snapshot_seconds": options.snapshot_seconds,
    }
    if options.listen and len(options.listen) > 1:
        server["listen"] = options.listen
    return {
        "weights": options.weights,
        "optimizer": options.optimizer,
        "hyper": hyper,
        "secret": secrets.read(options.secret_file),
        "server": {name: value for name, value in server.items() if value is not None},
        "save": options.save,
    }


def _check_save(file: Path) -> None:
    """Raise an error now if the file cannot be written at the end of the training."""
    if file.is_dir():
        raise Failed(f"--save {file}: that is a folder; give a file in it", 2)
    if not file.parent.is_dir():
        raise Failed(f"--save {file}: there is no folder {file.parent}; make it first", 2)
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        text = f"--save {file}: nothing can be written in {file.parent}: {error.strerror}"
        raise Failed(text, 2) from None


def _say(options: argparse.Namespace, ready: dict[str, Any], pid: int, again: bool) -> None:
    """Print the server's addresses. A restart does not change them."""
    if options.json:
        print(json.dumps({**ready, "pid": pid}), flush=True)
    elif not again:
        print(
            f"serving {ready['floats']:,} weights with {options.optimizer}; connect to", flush=True
        )
        print("\n".join(ready["addresses"]), flush=True)


class _Process:
    """The server process. It ends by itself when this process has ended."""

    def __init__(self, settings: dict[str, Any]) -> None:
        stop, self._stop = os.pipe()  # the server closes when all writers have closed
        self._out, out = os.pipe()
        try:
            # In a session of its own: Ctrl-C goes to this process only, which then closes the
            # server.
            self._process = start_child(
                spawn,
                "penstock.commands.shards:main",
                0,
                {"stop": stop, "out": out},
                settings,
                session=True,
            )
        finally:
            os.close(stop)
            os.close(out)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ending(self) -> str:
        """How the process ended. Waits for that."""
        status = self._process.wait()
        assert status is not None
        return describe_exit(status)

    def wait_until_ready(self, stop: int) -> dict[str, Any] | None:
        """Return the server's first message; None if this process must stop."""
        said = b""
        while not said.endswith(b"\n"):
            readable, _, _ = select.select([stop, self._out], [], [])
            if stop in readable:
                return None
            part = os.read(self._out, 1 << 16)
            if not part:
                raise Failed(f"the server process ended ({self.ending}) before it served")
            said += part
        ready: dict[str, Any] = json.loads(said)
        if "error" in ready:
            raise Failed(ready["error"])
        return ready

    def wait(self, stop: int) -> bool:
        """Wait until this process must stop (True) or the server has ended (False)."""
        readable, _, _ = select.select([stop, self._process.pidfd], [], [])
        if stop in readable:
            return True
        # The shards have this pipe, too: at its end all have ended, and their addresses are free.
        self._rest()
        return False

    def _rest(self) -> bytes:
        """What the server still writes, until all its processes have ended or a minute is over."""
        said, deadline = b"", time.monotonic() + _CLOSING_SECONDS
        while select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self._out, 1 << 16)
            if not part:
                break
            said += part
        return said

    def close(self) -> int:
        """Close the server in order; return the exit code."""
        self._close_stop()
        said = self._rest()
        status = self._process.wait(_CLOSING_SECONDS)
        if status is None:
            raise Failed(f"the server process did not close in {_CLOSING_SECONDS} s")
        for line in said.splitlines():
            ready = json.loads(line)
            if "error" in ready:
                raise Failed(ready["error"])
        if status != 0:
            raise Failed(f"the server process ended ({self.ending}) while it closed")
        return 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.close()
        self._close_stop()
        os.close(self._out)

    def _close_stop(self) -> None:
        stop, self._stop = self._stop, -1
        if stop >= 0:
            os.close(stop)


@contextlib.contextmanager
def _stops() -> Iterator[int]:
    """A descriptor that becomes readable when this process must stop."""
    reads, writes = os.pipe()
    before = {
        number: signal.signal(number, lambda *_: os.write(writes, b"."))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield reads
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reads)
        os.close(writes)
