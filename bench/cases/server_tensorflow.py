"""TensorFlow's ParameterServerStrategy: this process schedules steps, its servers are processes.

In a step, a worker takes a gradient from its data, the parameter server applies it, and the worker
reads the weights. Each step is a separate closure: within one, TensorFlow would send a gradient
once.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from harness import WORKERS, Figures, Size, expect, keep_heap
from peers import Program

from cases.server_ways import RATE, VALUE, WARM


def measure(size: Size) -> Figures:
    import tensorflow as tf

    keep_heap()
    tasks = [("ps", 0), *(("worker", each) for each in range(WORKERS))]
    servers: list[Program] = []
    try:
        servers += [Program("cases.server_tensorflow", kind, index) for kind, index in tasks]
        addresses = [server.read_line() for server in servers]
        expect(all(addresses), "a server has ended")
        jobs = {"ps": addresses[:1], "worker": addresses[1:], "chief": ["127.0.0.1:0"]}
        cluster = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), rpc_layer="grpc", task_type="chief", task_id=0
        )
        return _steps(size, tf.distribute.ParameterServerStrategy(cluster))
    finally:
        for server in servers:
            server.end()


def _steps(size: Size, strategy: Any) -> Figures:
    import tensorflow as tf

    with strategy.scope():
        weights = tf.Variable(tf.zeros([size.floats]))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    plain = tf.autograph.experimental.do_not_convert  # it writes files

    # The same array at each step, in the worker's memory.
    @plain
    def data() -> Any:
        return tf.data.Dataset.from_tensors(tf.fill([size.floats], VALUE)).repeat()

    gradients = iter(coordinator.create_per_worker_dataset(data))

    @tf.function(autograph=False)
    def step(gradients: Any) -> Any:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=weights.handle, alpha=RATE, delta=next(gradients)
        )
        return tf.identity(weights.read_value())[-1]

    def run(rounds: int) -> Any:
        pulled = [coordinator.schedule(step, args=(gradients,)) for _ in range(rounds)]
        coordinator.join()
        return pulled

    run(WORKERS * WARM)
    began = time.perf_counter()
    pulled = run(WORKERS * size.rounds)
    seconds = time.perf_counter() - began
    expected = -RATE * VALUE * WORKERS * (WARM + size.rounds)
    low, high = (float(each(weights)) for each in (tf.reduce_min, tf.reduce_max))
    expect(abs(low / expected - 1) < 1e-3 > abs(high / expected - 1), f"{low}, not {expected}")
    last = min(float(each.fetch()) for each in pulled)
    expect(abs(last / expected - 1) < 1e-3, f"{last} was pulled, not {expected}")
    return {"rounds": WORKERS * size.rounds / seconds}


def main() -> None:
    """A server of one task; it prints its address, and gets the others from the chief."""
    import tensorflow as tf

    keep_heap()
    kind, index = sys.argv[1], int(sys.argv[2])
    alone = tf.train.ClusterSpec({kind: {index: "127.0.0.1:0"}})
    server = tf.distribute.Server(alone, job_name=kind, task_index=index, protocol="grpc")
    print(server.target.removeprefix("grpc://"), flush=True)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    main()
