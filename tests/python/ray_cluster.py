"""A Ray cluster of two nodes on this machine, on addresses of the loopback device."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 100 << 20

# Ray replaces 127.0.0.1 by the host's address on a network, but no other loopback address.
ADDRESSES = ("127.0.0.2", "127.0.0.3")


@contextlib.contextmanager
def cluster(cpus: int = 2) -> Iterator[Cluster]:
    """Start the nodes, connect to them, and stop all their processes at the end.

    Workers import the modules of tests/python.
    """
    # Sockets have short paths: the folders of tests are too long.
    folder = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    settings = {
        "RAY_TMPDIR": folder.name,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "RAY_AUTH_MODE": "disabled",  # writes a token into the user's home directory otherwise
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_worker_niceness": "0",  # 15 otherwise: they would wait for other tests
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    others = set(psutil.Process().children(recursive=True))
    made = None
    try:
        node = {"num_cpus": cpus, "object_store_memory": STORE_BYTES}
        made = Cluster()
        for address in ADDRESSES:
            made.add_node(**node, node_ip_address=address, include_dashboard=False)
        ray.init(
            address=made.address,
            _node_ip_address=ADDRESSES[0],
            log_to_driver=False,
            logging_level="error",
        )
        yield made
    finally:
        started = set(psutil.Process().children(recursive=True)) - others
        ray.shutdown()
        if made is not None:
            made.shutdown()
        _, left = psutil.wait_procs(started, timeout=10)
        names = [str(process) for process in left]
        for process in left:
            process.kill()
        folder.cleanup()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    assert not names, f"the cluster has left processes: {names}"
