"""The server process of ``penstock serve``: it runs until its descriptor "stop" ends.

Its descriptor "out" becomes its standard output: a line of JSON when it is ready, and for an error.
When "stop" ends (also because its parent has ended), it closes in order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def optimizers() -> dict[str, Any]:
    """Every optimizer by its name in lower case."""
    from penstock.train import optimizers as module

    names = [name for name in module.__all__ if name != "Optimizer"]
    return {name.lower(): getattr(module, name) for name in names}


def serve(settings: dict[str, Any], wait: Callable[[], object]) -> None:
    """Serve until `wait` returns."""
    from penstock import train
    from penstock.errors import Error, System

    parameters = train.Parameters.from_file(settings["weights"])
    optimizer = optimizers()[settings["optimizer"]](**settings["hyper"])
    with train.ParameterServer(
        parameters, optimizer, secret=settings["secret"] or None, **settings["server"]
    ) as server:
        floats = sum(shard["floats"] for shard in server.stats())
        versions = [shard["version"] for shard in server.stats()]
        ready = {
            "addresses": server.addresses,
            "floats": floats,
            "versions": versions,
            "shards": server.pids,
        }
        print(json.dumps(ready), flush=True)
        wait()
        failures = []
        try:
            server.close()
        except Error as error:
            failures.append(str(error))
        try:  # also if a snapshot could not be written
            if settings["save"]:
                parameters.save(settings["save"])
        except (Error, OSError) as error:
            failures.append(f"--save {settings['save']}: {error}")
        if failures:
            raise System("; ".join(failures))


def main(_index: int, fds: dict[str, int], settings: dict[str, Any]) -> None:
    from penstock.errors import Error

    os.dup2(fds["out"], 1)  # inherited by the shards: it ends when all of them have ended
    os.close(fds["out"])
    try:
        serve(settings, lambda: os.read(fds["stop"], 1))
    except (Error, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
