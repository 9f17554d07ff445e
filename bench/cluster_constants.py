"""The constants of cluster_model.py, and the small cases that the simulator is checked with."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import remote, server_ways
from cluster_model import Constants, Costs, Resource, Step, simulate
from harness import Others, Size, closing, cpu_seconds
from peers import Program

SMALL, LARGE = 4096, 4 << 20  # bytes: of a batch, and of a gradient
SECONDS = 1.5  # of each measurement


# The share of the machine that other processes took in each measurement.
disturbances: list[float] = []


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Feed:
    """Batches of so many bytes from a number of servers of remote workers."""

    def __init__(self, size: int, servers: int) -> None:
        import penstock

        self.programs = [Program(remote.PROGRAM, "server") for _ in range(servers)]
        addresses = [each.read_line() for each in self.programs]
        workers = penstock.remote.workers(addresses, servers, secret=remote.SECRET)
        items = remote.Items(Size(data="", shape=[size // 4], count=1 << 20))
        self.loader = penstock.Loader(items, workers=workers, max_queue_size=4 * servers)

    def measure(self) -> tuple[float, float, float]:
        """Batches per second; CPU seconds of a batch in this process, and in the servers'."""
        with closing(self.loader) as feed:
            batches = iter(feed)
            for _ in range(20):
                next(batches)
            others, count = Others(), 0
            began, own, everyone = time.perf_counter(), own_cpu(), cpu_seconds()
            while time.perf_counter() < began + SECONDS:
                next(batches)
                count += 1
            took, own = time.perf_counter() - began, own_cpu() - own
            servers = cpu_seconds() - everyone - own
            disturbances.append(others.share())
        return count / took, own / count, max(servers, 0.0) / count

    def close(self) -> None:
        for each in self.programs:
            each.end()


def fed(size: int, servers: int) -> tuple[float, float, float]:
    with closing(Feed(size, servers)) as feed:
        return feed.measure()


def served(size: int, clients: int) -> tuple[float, float, float, float]:
    """Rounds per second of all clients of one shard; CPU seconds of a client and of the shard for
    one round; of the shard for a sign of life."""
    program = Program("cluster_constants", "server", size // 4)
    workers = []
    try:
        address = program.read_line()
        workers = [
            Program("cluster_constants", "client", size // 4, address) for _ in range(clients)
        ]
        for each in workers:
            each.read_line()  # it is ready
        program.go()
        program.read_line()
        others = Others()
        for each in workers:
            each.go()
        spent = [json.loads(each.read_line()) for each in workers]
        program.go()
        server = float(program.read_line())
        disturbances.append(others.share())
        rounds = sum(each["rounds"] for each in spent)
        rate = sum(each["rounds"] / each["seconds"] for each in spent)
        cpu = sum(each["cpu"] for each in spent)
        for each in workers:
            each.go()
        beats = sum(json.loads(each.read_line()) for each in workers)
        program.go()
        beat = float(program.read_line()) / beats
        return rate, cpu / rounds, server / rounds, beat
    finally:
        for each in [*workers, program]:
            each.end()


def costs_of(small: float, large: float) -> Costs:
    byte = max(large - small, 0.0) / (LARGE - SMALL)
    return Costs(max(small - byte * SMALL, 0.0), byte)


def constants() -> Constants:
    _, trainer_small, worker_small = fed(SMALL, 1)
    _, trainer_large, worker_large = fed(LARGE, 1)
    _, client_small, shard_small, beat = served(SMALL, 1)
    _, client_large, shard_large, _ = served(LARGE, 1)
    stream = Size(data="", shape=[LARGE // 4], count=100, queue=4, seconds=1.0)
    return Constants(
        worker=costs_of(worker_small, worker_large),
        trainer=costs_of(trainer_small, trainer_large),
        client=costs_of(client_small, client_large),
        shard=costs_of(shard_small, shard_large),
        beat=beat,
        link=float(remote.plain_tcp(stream)["rate"]),
    )


def small_cases(costs: Constants) -> Iterator[tuple[str, float, float]]:
    """Other cases than the constants were measured in: their rates, predicted and measured."""
    for size, servers in ((LARGE, 3), (LARGE // 4, 2), (SMALL, 2)):
        title = f"{servers} servers of remote workers, batches of {size:,} bytes"
        yield title, predicted_feed(costs, size, servers), fed(size, servers)[0]
    for size, clients in ((LARGE, 2), (LARGE // 4, 3)):
        title = f"{clients} clients of a parameter server, {size:,} bytes"
        yield title, predicted_server(costs, size, clients), served(size, clients)[0]


def predicted_feed(costs: Constants, size: int, servers: int) -> float:
    machine = Resource("cores", len(os.sched_getaffinity(0)))
    found: list[list[Step]] = []
    for _ in range(servers):
        process = Resource("the workers")
        steps: list[Step] = [
            ((process, machine), costs.worker.of(size)),
            ((machine,), costs.trainer.of(size)),
        ]
        found += [steps] * 2  # tickets in flight
    return simulate(found, 2000 * costs.worker.of(size)).rate


def predicted_server(costs: Constants, size: int, clients: int) -> float:
    machine, thread = (
        Resource("cores", len(os.sched_getaffinity(0))),
        Resource("the thread of a shard"),
    )
    steps: list[Step] = [
        ((machine,), costs.client.of(size)),
        ((thread, machine), costs.shard.of(size)),
    ]
    return simulate([steps] * clients, 2000 * costs.shard.of(size)).rate


# ---- processes -----------------------------------------------------------------------------------


def serve(floats: int) -> None:
    """A parameter server; prints its address, then its CPU seconds between two lines of input."""
    from penstock import train

    parameters = train.Parameters({"w": (floats,)})
    server = train.ParameterServer(
        parameters, train.SGD(server_ways.RATE), shards=1, listen="tcp://127.0.0.1:0"
    )
    print(server.addresses[0], flush=True)
    last = 0.0
    for _ in sys.stdin:
        now = own_cpu()
        print(now - last, flush=True)
        last = own_cpu()


def be_client(floats: int, address: str) -> None:
    """Rounds for `SECONDS`, then signs of life."""
    worker = server_ways.PenstockWorker(floats, [address], 0)
    for _ in range(5):
        worker.round()
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu, rounds = time.perf_counter(), own_cpu(), 0
    while time.perf_counter() < began + SECONDS:
        worker.round()
        rounds += 1
    spent = {"rounds": rounds, "seconds": time.perf_counter() - began, "cpu": own_cpu() - cpu}
    print(json.dumps(spent), flush=True)
    sys.stdin.readline()
    beats = 2000
    for _ in range(beats):
        worker.client._client.beat()
    print(beats, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    else:
        be_client(int(sys.argv[2]), sys.argv[3])
