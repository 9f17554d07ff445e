"""Set-up of the peers, and processes that a case talks to, for use by several cases."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import WORKERS


def torch_loader(dataset: Any, **options: Any) -> Any:
    """A DataLoader with two persistent worker processes; `options` override."""
    import torch

    settings: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
    settings.update(options)
    return torch.utils.data.DataLoader(dataset, **settings)


def keras_epoch(
    item: Callable[[int], Any], length: int, **options: Any
) -> Callable[[], Iterator[Any]]:
    """Return the iterator of model.fit for a PyDataset of these items; called once an epoch.

    Keras builds a new pool for each epoch, so the adapter is also built again.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
    from keras.utils import PyDataset

    class Batches(PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return length

        def __getitem__(self, k: int) -> Any:
            return item(k)

    def epoch() -> Iterator[Any]:
        adapter = PyDatasetAdapter(Batches(**options), shuffle=False)
        yield from adapter.get_numpy_iterator()

    return epoch


def grain_processes(dataset: Any, buffered: int) -> Any:
    """Two worker processes behind a grain MapDataset."""
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # its workers need parsed absl flags, as by absl.app.run
    items = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    return items.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=buffered)
    )


def grain_threads(dataset: Any, buffered: int) -> Any:
    import grain

    return dataset.to_iter_dataset(
        grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=buffered)
    )


def side_by_side(module: str, function: str, *arguments: Any) -> tuple[float, list[Any]]:
    """Run a function in two new processes at once, without hand-over, for a limit.

    Returns the seconds from before their start to after their end, and their results.
    """
    import json
    import time

    line = (
        f"import sys, json; sys.path[:0] = {[os.path.dirname(__file__)]!r}; "
        f"import {module} as m; "
        f"print(json.dumps(m.{function}(*json.loads(sys.argv[1]))))"
    )
    began = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", line, json.dumps([*arguments, part])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(WORKERS)
    ]
    said = [process.communicate()[0] for process in running]
    spent = time.perf_counter() - began
    return spent, [json.loads(text) for text in said]


class Program:
    """A module of this folder as a process, which communicates by lines of text."""

    def __init__(self, module: str, *arguments: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=os.path.dirname(os.path.abspath(__file__)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_line(self) -> str:
        """Wait for its next line; empty if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go(self) -> None:
        """Send a line, for which it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def redis_socket(where: Path) -> Path:
    """The socket of the server of `redis_server`."""
    return where / "redis"


def redis_server(where: Path) -> subprocess.Popen[bytes]:
    """Start Redis on a Unix socket in a folder, with nothing kept in files; until `redis_end`.

    Its server and its check programs are one binary, which behaves according to its name.
    """
    import shutil
    import time

    program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if program is None:
        raise ImportError("redis-server is in Debian's redis-tools")
    settings = {"port": "0", "unixsocket": redis_socket(where), "dir": where}
    settings |= {"save": "", "appendonly": "no"}
    line = [f"{word}" for name, value in settings.items() for word in (f"--{name}", value)]
    nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    server = subprocess.Popen(
        ["redis-server", *line], executable=program, stderr=subprocess.DEVNULL, **nowhere
    )
    # It listens before its socket appears.
    while not redis_socket(where).exists():
        if server.poll() is not None:
            raise RuntimeError(f"redis-server has ended with {server.returncode}")
        time.sleep(0.01)
    return server


def redis_end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


class Mosquitto:
    """An MQTT broker on loopback that keeps all messages in memory; a context manager."""

    def __init__(self, where: Path) -> None:
        import shutil
        import socket
        import time

        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise ImportError("mosquitto is a package of that name")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        settings = where / "mosquitto.conf"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nlog_dest none\n"
            "max_queued_messages 0\nmax_inflight_messages 1000\nset_tcp_nodelay true\n"
        )
        self._process = subprocess.Popen([program, "-c", str(settings)], stderr=subprocess.DEVNULL)
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"mosquitto does not listen at port {self.port}")

    def __enter__(self) -> Mosquitto:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


# Workers would run after all other processes of the machine otherwise.
_RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
_RAY: dict[str, Any] = {
    "namespace": "bench",
    "log_to_driver": False,
    "configure_logging": False,
    "_node_ip_address": "127.0.0.1",
}


def ray_head(store_bytes: int) -> str:
    """Start a cluster of this process, until `ray_end`; return its address.

    `store_bytes` is the size of its store. Its processes authenticate by a token, which ray reads
    from the environment when it is imported.
    """
    import secrets
    import tempfile

    os.environ.update(_RAY_ENVIRONMENT, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    _RAY["_temp_dir"] = tempfile.mkdtemp(prefix="ray-")
    begun = ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=store_bytes,
        **_RAY,
    )
    return str(begun.address_info["gcs_address"])


def ray_end() -> None:
    import shutil

    import ray

    ray.shutdown()
    shutil.rmtree(_RAY.pop("_temp_dir"), ignore_errors=True)


@contextlib.contextmanager
def ray_nodes(addresses: Sequence[str], cpus: int, store_bytes: int) -> Iterator[Any]:
    """A cluster with a node at each address of the loopback device; its driver is at the first.

    `store_bytes` is the size of a node's store.
    """
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="ray-")
    os.environ.update(_RAY_ENVIRONMENT, RAY_AUTH_MODE="disabled", RAY_TMPDIR=folder)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for address in addresses:
            cluster.add_node(
                num_cpus=cpus,
                object_store_memory=store_bytes,
                node_ip_address=address,
                include_dashboard=False,
            )
        ray.init(
            address=cluster.address,
            _node_ip_address=addresses[0],
            log_to_driver=False,
            configure_logging=False,
        )
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def ray_join(address: str) -> None:
    """Become a driver of the cluster of `ray_head`; for a started process."""
    import ray

    ray.init(address=address, **_RAY)
