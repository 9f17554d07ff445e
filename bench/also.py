"""penstock's entries for peer benchmarks of the form ``feed_CASE.py --also bench/also.py``.

Such a script makes a `bench` with a ``case`` and a decorator ``peer(name, settings)``; an entry is
a function of the script's arguments that returns its ``Epochs(start, split)``. Cases here: pymap
(samples through a Python function), memory (rows of arrays), shuffle (an order of indices) and
handover (small items).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

WORKERS = 2


def register(bench: Any) -> None:
    adders: dict[str, Callable[[Any, Any], None]] = {
        "pymap": add_pymap,
        "memory": add_memory,
        "shuffle": add_shuffle,
        "handover": add_handover,
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


def add_memory(bench: Any, case: Any) -> None:
    def columns(args: Any) -> Any:
        import penstock

        loader = penstock.Loader(
            case.load(args), batch_size=case.BATCH, shuffle=True, workers=WORKERS
        )
        return case.Epochs(lambda: loader, case.flipped, loader.close)

    bench.peer("penstock, 2 threads", "Loader((x, y), batch_size=256, shuffle)")(columns)


def add_shuffle(bench: Any, case: Any) -> None:
    def permutation(args: Any) -> Any:
        import penstock

        def order(n: int) -> Iterator[Any]:
            whole = penstock.Permutation(n, seed=1)
            for at in range(0, n, 256):
                yield whole.take(at, 256)

        return case.measured(args, order)

    bench.peer("penstock.Permutation", "stateless, 256 indices a call")(permutation)


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
