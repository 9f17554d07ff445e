"""The server process of ``penstock serve``: it runs until its standard input ends.

Its configuration is a line of JSON on its standard input. It answers with a line of JSON on its
standard output when it is ready. When its standard input ends (also because its parent has ended),
it closes in order.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def optimizers() -> dict[str, Any]:
    """Every optimizer by its name in lower case."""
    from penstock.train import optimizers as module

    names = [name for name in module.__all__ if name != "Optimizer"]
    return {name.lower(): getattr(module, name) for name in names}


def serve(told: dict[str, Any]) -> None:
    from penstock import train
    from penstock.errors import Error, System

    parameters = train.Parameters.from_file(told["weights"])
    optimizer = optimizers()[told["optimizer"]](**told["hyper"])
    with train.ParameterServer(
        parameters, optimizer, secret=told["secret"] or None, **told["server"]
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
        sys.stdin.read()
        failures = []
        try:
            server.close()
        except Error as error:
            failures.append(str(error))
        try:  # also if a snapshot could not be written
            if told["save"]:
                parameters.save(told["save"])
        except (Error, OSError) as error:
            failures.append(f"--save {told['save']}: {error}")
        if failures:
            raise System("; ".join(failures))


def main() -> int:
    from penstock.errors import Error

    told = json.loads(sys.stdin.readline())
    try:
        serve(told)
    except (Error, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
