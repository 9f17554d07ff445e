"""penstock's entries for peer benchmarks of the form ``feed_CASE.py --also bench/also.py``.

Such a script makes a `bench` with a ``case`` and a decorator ``peer(name, settings)``; an entry is
a function of the script's arguments that returns its ``Epochs(start, split)``. Cases here: pymap
(samples through a Python function), memory (rows of arrays), shuffle (an order of indices),
handover (small items) and tfrecord (tf.Examples). Entries that begin with penstock.Dataset are
native pipelines, the others a Loader over the same input.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

WORKERS = 2


def register(bench: Any) -> None:
    adders: dict[str, Callable[[Any, Any], None]] = {
        "pymap": add_pymap,
        "memory": add_memory,
        "shuffle": add_shuffle,
        "handover": add_handover,
        "tfrecord": add_tfrecord,
    }
    if bench.case in adders:
        # Imported by name, not taken from __main__, so that worker processes find its classes.
        adders[bench.case](bench, importlib.import_module(f"feed_{bench.case}"))


def add_pymap(bench: Any, case: Any) -> None:
    def feed(args: Any, processes: bool) -> Any:
        import penstock

        loader = penstock.Loader(
            case.samples(args),
            batch_size=case.BATCH,
            shuffle=True,
            workers=WORKERS,
            use_multiprocessing=processes,
            max_queue_size=8,
        )
        return case.Epochs(lambda: loader, case.pairs, loader.close)

    bench.peer("penstock, 2 processes", "Loader(batch_size=64, shuffle), max_queue_size 8")(
        lambda args: feed(args, True)
    )
    bench.peer("penstock, 2 threads", "the same with threads")(lambda args: feed(args, False))

    def mapped(args: Any) -> Any:
        import penstock

        numbers = penstock.Dataset.range(args.samples).shuffle(seed=1)
        chain = numbers.map(case.samples(args).__getitem__).batch(case.BATCH)
        loader = chain.build(workers=WORKERS, max_queue_size=8)
        return case.Epochs(lambda: loader, case.pairs, loader.close)

    bench.peer("penstock.Dataset.map, 2 processes", "range.shuffle.map(function).batch(64)")(mapped)


def add_memory(bench: Any, case: Any) -> None:
    def columns(args: Any) -> Any:
        import penstock

        loader = penstock.Loader(
            case.load(args), batch_size=case.BATCH, shuffle=True, workers=WORKERS
        )
        return case.Epochs(lambda: loader, case.flipped, loader.close)

    bench.peer("penstock, 2 threads", "Loader((x, y), batch_size=256, shuffle)")(columns)

    def chain(args: Any) -> Any:
        import penstock

        rows = penstock.Dataset.arrays(case.load(args)).shuffle(seed=1).batch(case.BATCH)
        loader = rows.build(workers=WORKERS)
        return case.Epochs(lambda: loader, case.flipped, loader.close)

    bench.peer("penstock.Dataset.arrays, 2 threads", "arrays((x, y)).shuffle.batch(256)")(chain)


def add_shuffle(bench: Any, case: Any) -> None:
    def permutation(args: Any) -> Any:
        import penstock

        def order(n: int) -> Iterator[Any]:
            whole = penstock.Permutation(n, seed=1)
            for at in range(0, n, 256):
                yield whole.take(at, 256)

        return case.measured(args, order)

    bench.peer("penstock.Permutation", "stateless, 256 indices a call")(permutation)

    def chain(args: Any) -> Any:
        import penstock

        def order(n: int) -> Iterator[Any]:
            return iter(penstock.Dataset.range(n).shuffle(seed=1).batch(256))

        return case.measured(args, order)

    bench.peer("penstock.Dataset.range.shuffle", "batch(256), threads and all")(chain)


def add_handover(bench: Any, case: Any) -> None:
    def feed(args: Any, workers: int, processes: bool) -> Any:
        import penstock

        loader = penstock.Loader(
            case.Batches(args.batches),
            workers=workers,
            use_multiprocessing=processes,
            max_queue_size=256,
        )
        return case.Epochs(lambda: loader, case.ids_and_payload, loader.close)

    bench.peer("penstock, 2 processes", "max_queue_size 256")(
        lambda args: feed(args, WORKERS, True)
    )
    bench.peer("penstock, 2 threads", "max_queue_size 256")(lambda args: feed(args, WORKERS, False))
    bench.peer("penstock, in line", "workers=0")(lambda args: feed(args, 0, False))


def add_tfrecord(bench: Any, case: Any) -> None:
    def records(args: Any) -> Any:
        import penstock

        return penstock.Dataset.tfrecord(case.shard_files(args))

    def parsed(args: Any, data: Any) -> Any:
        import penstock

        operation = penstock.parse_example(
            {
                "label": penstock.int64(),
                "x": penstock.float32(case.FLOATS),
                "raw": penstock.bytes(case.RAW),
            }
        )
        loader = data.map(operation).batch(case.BATCH).build(workers=WORKERS)
        return case.Epochs(
            lambda: loader, lambda b: case.joined(b["label"], b["x"], b["raw"]), loader.close
        )

    bench.peer("penstock.Dataset.tfrecord, 2 threads", "map(parse_example), batch(256)")(
        lambda args: parsed(args, records(args))
    )
    bench.peer("penstock.Dataset.tfrecord, shuffled globally", "shuffle before the same")(
        lambda args: parsed(args, records(args).shuffle(seed=1))
    )

    def as_bytes(args: Any) -> Any:
        total = sum(os.path.getsize(path) for path in case.shard_files(args)) - 16 * args.records
        best, stop = float("inf"), time.perf_counter() + args.budget / 2
        loader = records(args).batch(case.BATCH).build(workers=WORKERS)
        while best == float("inf") or time.perf_counter() < stop:
            began, count, size = time.perf_counter(), 0, 0
            for batch in loader:
                count += len(batch)
                size += batch.values.size
            best = min(best, time.perf_counter() - began)
            assert (count, size) == (args.records, total), (count, size)
        loader.close()
        return case.Direct(args.records / best, "records/s", "checked count and bytes")

    bench.peer("raw: penstock.Dataset.tfrecord, crc always", "batch(256), 2 threads")(as_bytes)
