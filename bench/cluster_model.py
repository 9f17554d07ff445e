"""Which resource of a cluster ends first: a simulator of hosts and links, with measured constants.

    python bench/cluster_model.py             measures, checks the small case, simulates 128 hosts
    python bench/cluster_model.py --check     only measures and checks

Customers go round and round: a ticket that a worker makes, a round of a parameter server's client.
Each step of a round holds one unit of every named resource for some time: a core, a link, a
training process. Resources are served in the order of arrival. The constants are the CPU time of
each end of penstock's connections, for a message and for a byte; cluster_constants.py measures
them. The same simulator predicts a small case on this machine, which is measured in the same run.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

# The check fails if a predicted rate differs from the measured one by more than this factor.
FACTOR = 2.0
# The check counts only if other processes took at most this share of the machine (median).
CALM = 0.1

# The hosts that are simulated: not measured, but what is assumed.
HOSTS = 128
WORKERS = 1000
CORES = 32  # of a host
LINK = 12.5e9  # bytes per second in each direction: 100 Gbit/s


@dataclass
class Costs:
    """CPU seconds of one end of a connection."""

    message: float
    byte: float

    def of(self, size: float) -> float:
        return self.message + self.byte * size


@dataclass
class Constants:
    """What cluster_constants.py measures on this machine."""

    worker: Costs  # a remote worker's process: a ticket arrives, its batch is sent
    trainer: Costs  # the Loader's process: the ticket is sent, its batch arrives
    client: Costs  # of a parameter server: a push and a pull
    shard: Costs  # the other end, with the update
    beat: float  # a sign of life, at the shard
    link: float  # bytes per second of plain TCP over loopback, one connection


@dataclass
class Resource:
    """`units` that are alike, such as the cores of a host."""

    name: str
    units: int = 1
    busy: float = 0.0  # seconds, of all units
    free: list[float] = field(default_factory=list)  # when each unit is free again

    def reset(self) -> None:
        self.busy, self.free = 0.0, [0.0] * self.units


Step = tuple[Sequence[Resource], float]  # held together, for so many seconds


@dataclass
class Result:
    rate: float  # rounds per second of all customers, after the first third of the time
    used: dict[str, float]  # share of the time, by name; of several of a name the highest

    @property
    def first(self) -> str:
        """The resource that is used most: the one that ends first."""
        return max(self.used, key=lambda name: self.used[name])


def simulate(customers: Sequence[Sequence[Step]], seconds: float) -> Result:
    """Let every customer repeat its steps for so many simulated seconds.

    A step begins when all its resources have a free unit. Customers that wait for a resource get it
    in the order in which they came.
    """
    order = itertools.count()
    # The first rounds begin at different times, as those of workers do.
    events = [(1e-9 * i, next(order), i, 0) for i in range(len(customers))]
    heapq.heapify(events)
    warm, ended = seconds / 3, 0
    resources = {id(each): each for steps in customers for held, _ in steps for each in held}
    for each in resources.values():
        each.reset()
    while events and events[0][0] < seconds:
        now, _, who, at = heapq.heappop(events)
        held, took = customers[who][at]
        begin = max([now, *(each.free[0] for each in held)])
        end = begin + took
        for each in held:
            heapq.heapreplace(each.free, end)
            each.busy += max(min(end, seconds) - max(begin, warm), 0.0)
        last = at + 1 == len(customers[who])
        ended += last and warm <= end < seconds
        heapq.heappush(events, (end, next(order), who, 0 if last else at + 1))
    measured = seconds - warm
    used: dict[str, float] = {}
    for resource in resources.values():
        share = resource.busy / measured / resource.units
        used[resource.name] = max(used.get(resource.name, 0.0), share)
    return Result(ended / measured, used)


# ---- the cases -----------------------------------------------------------------------------------


def remote_batches(
    costs: Constants,
    size: float,
    make: float,
    step: float,
    *,
    workers: int,
    trainers: int,
    hosts: int,
    in_flight: int,
    queue: int | None = None,
) -> list[list[Step]]:
    """Batches that are made on `hosts`, for `trainers` training processes on one more host.

    `make`: CPU seconds of a batch; `step`: seconds of a training step. Each training process has
    its share of the workers, and at most `queue` tickets.
    """
    nic_in, cores_in = Resource("link of the training host"), Resource("cores there", CORES)
    machines = [
        (Resource("cores of the workers' hosts", CORES), Resource("links of the workers' hosts"))
        for _ in range(hosts)
    ]
    loops = [Resource("the training steps") for _ in range(trainers)]
    found: list[list[Step]] = []
    for number in range(workers):
        process = Resource("the workers")
        cores, nic = machines[number % hosts]
        loop = loops[number % trainers]
        held = (process, cores)  # a process runs one ticket at a time
        steps: list[Step] = [
            (held, make),
            ((cores,), costs.worker.of(size)),
            ((nic, nic_in), size / LINK),
            ((cores_in,), costs.trainer.of(size)),
            ((loop,), step),
        ]
        found += [steps] * in_flight
    return found if queue is None else found[: queue * trainers]


def server_rounds(
    costs: Constants, size: float, compute: float, *, workers: int, shards: int, beats: float
) -> list[list[Step]]:
    """Rounds of a parameter server: compute, push a gradient and pull the weights, of `size` bytes.

    All shards have the same work, so one of them is simulated: a host with its part of the bytes.
    `beats`: signs of life of a client per second.
    """
    part = size / shards
    thread, nic = Resource("the thread of a shard"), Resource("link of a shard's host")
    alive = costs.beat * beats  # per second of a client, as a share of the shard's thread
    found: list[list[Step]] = []
    for _ in range(workers):
        own = Resource("the workers")
        found.append(
            [
                ((own,), compute + costs.client.of(size)),
                ((own, nic), 2 * part / LINK),  # both directions are used, one after the other
                ((own, thread), costs.shard.of(part) + alive * compute),
            ]
        )
    return found


def relayed_weights(size: float, every: float, hosts: int) -> list[list[Step]]:
    """Weights that a learner publishes, which its host sends once to each other host."""
    nic = Resource("link of the learner's host")
    return [
        [((nic, Resource("links of the readers' hosts")), size / LINK), ((), every)]
        for _ in range(hosts - 1)
    ]


# ---- what is printed -----------------------------------------------------------------------------

IMAGES, PIXELS = 256, 224 * 224 * 3  # uint8
BATCH = float(IMAGES * PIXELS)  # 38.5 MB
MAKE = IMAGES * 2e-3  # CPU seconds: JPEGs of 2 ms
GRADIENT = 40e6  # 10 million floats
BEATS = 0.1  # signs of life of a client per second: every 10 s, with a lease of 40 s or more
MOST_OF_LOADER = 128  # remote workers: 256 places, of which each takes two


def table(costs: Constants) -> list[tuple[str, Result, str]]:
    """The cases of 128 hosts: what is done, the result, and the unit of its rate."""

    def batches(step: float, workers: int, trainers: int, hosts: int) -> Result:
        cycle = remote_batches(
            costs, BATCH, MAKE, step, workers=workers, trainers=trainers, hosts=hosts, in_flight=2
        )
        return simulate(cycle, 30.0)

    def rounds(shards: int, compute: float) -> Result:
        cycle = server_rounds(costs, GRADIENT, compute, workers=WORKERS, shards=shards, beats=BEATS)
        return simulate(cycle, 30.0)

    far = HOSTS - 1
    own = batches(0.05, 8, 1, 1)
    own.rate *= HOSTS
    found = [
        (f"one training process, {MOST_OF_LOADER} workers", batches(0.0, MOST_OF_LOADER, 1, far)),
        (f"8 training processes of one host, {WORKERS} workers", batches(0.0, WORKERS, 8, far)),
        ("the same, steps of 50 ms", batches(0.05, WORKERS, 8, far)),
        (f"each of {HOSTS} hosts trains in steps of 50 ms, 8 workers for it", own),
    ]
    table = [(title, result, "batches/s") for title, result in found]
    for shards in (8, 32, HOSTS):
        title = f"parameter server, {shards} shards, {WORKERS} clients that compute 1 s"
        table.append((title, rounds(shards, 1.0), "rounds/s"))
    for every in (0.1, 1.0):
        title = f"weights of 40 MB for {HOSTS - 1} hosts, published every {every:g} s"
        result = simulate(relayed_weights(GRADIENT, every, HOSTS), 30.0)
        result.rate /= HOSTS - 1
        table.append((title, result, "versions/s"))
    return table


def show(costs: Constants) -> None:
    print("constants of this machine, CPU time:")
    for name, each in (
        ("a remote worker, for a batch", costs.worker),
        ("the Loader's process, for a batch", costs.trainer),
        ("a client, for a push and a pull", costs.client),
        ("a shard, for both and the update", costs.shard),
    ):
        print(f"  {name}: {each.message * 1e6:.0f} us and {each.byte * 1e9:.2f} ns for each byte")
    print(f"  a shard, for a sign of life: {costs.beat * 1e6:.0f} us")
    print(f"  plain TCP, one connection over loopback: {costs.link * 1e-9:.2f} GB/s")
    alive = BEATS * WORKERS * costs.beat
    print(f"  signs of life of {WORKERS} clients take {alive:.2%} of a shard's thread")
    print(f"\nassumed: {HOSTS} hosts of {CORES} such cores, links of {LINK * 8e-9:.0f} Gbit/s each")
    print(f"batches of {BATCH * 1e-6:.1f} MB, {MAKE:g} s of CPU each; gradients of 40 MB\n")
    print("| case | rate | ends first | in use | next | in use |")
    print("|---|---|---|---|---|---|")
    for title, result, unit in table(costs):
        most = sorted(result.used.items(), key=lambda each: -each[1])[:2]
        cells = " | ".join(f"{name} | {share:.0%}" for name, share in most)
        print(f"| {title} | {result.rate:.4g} {unit} | {cells} |")


def main() -> None:
    import cluster_constants as measure

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only measure and check")
    only_check = parser.parse_args().check
    costs = measure.constants()
    wrong = []
    print("small cases on this machine, by the simulator and as measured:")
    for title, predicted, measured in measure.small_cases(costs):
        ratio = predicted / measured
        print(f"  {title}: {predicted:.4g} and {measured:.4g} per second, {ratio:.2f} times")
        if not 1 / FACTOR <= ratio <= FACTOR:
            wrong.append(title)
    if (share := statistics.median(measure.disturbances)) > CALM:
        print(f"not judged: other processes took {share:.0%} of the machine")
    elif wrong:
        sys.exit(f"the simulator is wrong by more than a factor of {FACTOR}: {', '.join(wrong)}")
    if not only_check:
        print()
        show(costs)


if __name__ == "__main__":
    main()
