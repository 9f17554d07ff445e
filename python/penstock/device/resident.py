"""Data that stays on a device: read once, then shuffled and batched there.

>>> images = penstock.device.resident(dataset, "cuda:0")
>>> for epoch in range(10):
...     for batch in images: ...
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import integer
from ..base.conventions import Closing, Restorable, shown
from ..base.nests import leaves_of, mapped
from ..errors import Closed, InvalidArgument
from ..loader import Loader
from ..loader.iterators import BatchIterator
from ..loader.source import info_for_device
from .ahead import Ahead
from .functions import Functions, Rows, same_device
from .rows import device_rows, host_permuted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..dataset.row_order import RowOrder
    from ..loader.options import WorkerOptions

__all__ = ["Resident", "resident"]

# Positions whose rows are computed at a time: 32 MiB of device memory, and few kernels per batch.
_WINDOW = 1 << 22


def resident(
    dataset: Any, device: Any, *, max_bytes: int | None = None, **options: Unpack[WorkerOptions]
) -> Resident:
    """Keep a Dataset's rows in the memory of a device, and make its batches there.

    The rows are read once, by all workers, while the first epoch is delivered. Every later epoch is
    gathered on the device, in the same order as by the Dataset itself. Nothing crosses the link
    then, unless the rows do not fit. All rows are read before the first batch if they do not fit,
    if the first epoch leaves rows out, and after `restore` amid an epoch.

    Parameters
    ----------
    dataset : penstock.Dataset
        An indexed chain with `batch`. Its rows are those of the first epoch: functions of `map`
        run once for each row. Below `batch`, all elements may be in another order in each epoch
        (`shuffle`, `take`, `skip`, `shard`); `take`, `skip`, `shard`, `repeat` and `prefetch` may
        follow.
    device : str, torch.device or jax.Device
        One device: ``"cuda:0"``, ``"cpu"`` or another of torch's, whose batches are tensors; or
        one of jax's, whose batches are arrays of jax.
    max_bytes : int, optional
        Device memory for rows. Rows that do not fit stay in memory of the host, and are sent when
        a batch needs them. None: nine tenths of the free memory of an accelerator; any number of
        bytes in memory of the host.
    **options
        Those of `penstock.Loader` that concern workers, for the pass that reads the rows.

    Returns
    -------
    Resident

    Raises
    ------
    InvalidArgument
        The order of the chain cannot be repeated: a stream, random native operations, functions
        behind `batch`. The text says what to change. Or the device is not one device.
    NotFound
        There is no CUDA driver, or no such device.

    Notes
    -----
    A function of `map` that draws random numbers gives each row the result of one call for all
    epochs. Augment on the device instead.
    """
    return Resident(dataset, device, max_bytes, options)


class Resident(Restorable, Closing):
    """Batches of rows that are on a device. Made by `resident`.

    Iterating over it is one pass, as over a `penstock.Loader` of the same Dataset: the next ``for``
    is the next epoch. Positions are those of that Loader, too, so a state of one may be restored in
    the other. Batches are new memory of the framework and may be kept. One thread at a time.
    """

    def __init__(
        self, dataset: Any, device: Any, max_bytes: int | None, options: WorkerOptions
    ) -> None:
        name = "device.resident"
        self._functions = Functions(dataset)
        self._functions.check_device(device, same_device(device, self._functions.device))
        dataset = self._functions.source
        if not hasattr(dataset, "_row_order"):
            raise InvalidArgument(
                f"{type(dataset).__name__} is not a penstock.Dataset; make one of arrays by "
                "penstock.Dataset.arrays(...), of samples by penstock.Dataset.source(...)",
                name,
            )
        for option in options:
            if option in ("on_error", "ordered"):
                raise InvalidArgument(f"{option} is not an option here", name)
        self._most = (
            None if max_bytes is None else integer("max_bytes", max_bytes, 1, operation=name)
        )
        self._order: RowOrder = dataset._row_order(name)
        self._rows = device_rows(device, name)
        if self._order.length > self._rows.longest:
            raise InvalidArgument(
                f"{self._order.length} rows are more than {self._rows.longest}, the limit of "
                f"indices on {self._rows.name}; take() a part of them",
                name,
            )
        place = self._rows.place
        if place is not None:
            place.check_start_method(options.get("start_method"))
        self._options = options
        # It makes no batch: it checks and writes states.
        self._loader = Loader(dataset, workers=0, seed=options.get("seed", 0))
        self._dataset, self._title = dataset, repr(dataset)
        self._at = (0, 0, 0)  # epoch, base, step of the next batch
        self._resumed = False
        self._serial = 0
        self._closed = False
        self._filled = False
        self._example: Any = None  # a nest with the structure of a batch
        self._host: list[np.ndarray[Any, Any]] = []  # columns of the rows that do not fit
        self._window: tuple[Any, ...] = ()  # epoch, base, first position; the rows of these
        self._sent: tuple[Any, ...] = ()  # a position, and the rows that are on their way for it
        self._counts = dict.fromkeys(
            (
                *("rows", "resident_rows", "resident_bytes", "host_rows", "host_bytes"),
                *("link_bytes", "fill_ns", "delivered", "epochs"),
            ),
            0,
        )

    # ---- iterating -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        epoch, base, step = self._at
        if not self._resumed and (step or base or epoch != self._first_of_pass(epoch)):
            self._at = (self._first_of_pass(epoch) + max(self._order.rounds, 1), 0, 0)
        self._resumed = False
        first = self._first_of_pass(self._at[0])
        if not self._filled and not (self._at[1:] == (0, 0) and self._order.has_all_rows):
            self._fill()
        return self._run(first + self._order.rounds if self._order.rounds else None, None)

    def steps(self, n: int) -> Iterator[Any]:
        """Iterate over the next `n` batches, across the ends of epochs.

        A later ``for`` finishes the epoch.
        """
        n = integer("n", n, 0, operation="steps")
        self._check_open()
        if not self._filled:
            self._fill()
        self._resumed = True
        return self._run(None, n)

    def _first_of_pass(self, epoch: int) -> int:
        rounds = max(self._order.rounds, 1)
        return epoch - epoch % rounds

    def _run(self, end: int | None, most: int | None) -> Iterator[Any]:
        """Return the batches before epoch `end`, `most` of them, until another iteration begins."""
        self._serial += 1
        if self._order.steps() == 0 and end is None:
            raise InvalidArgument(f"there is no batch in {self._title}", "device.resident")
        batches = self._batches(self._serial, end, most)
        facts = {"epoch": self._at[0]} if most is None else {"steps": most}
        return BatchIterator(self, batches, **facts)

    def _batches(self, serial: int, end: int | None, most: int | None) -> Iterator[Any]:
        given = 0
        reading: Iterator[Any] | None = None
        while serial == self._serial and given != most and (end is None or self._at[0] < end):
            epoch, base, step = self._at
            steps = self._order.steps(base)
            if step >= steps:
                self._at = (epoch + 1, 0, 0)
                continue
            if self._filled:
                batch = self._batch(epoch, base, step)
            else:
                reading = reading or self._read_in_order(epoch)
                batch = next(reading)
            # After an epoch's last batch the position is in the next epoch.
            over = step + 1 == steps
            self._at = (epoch + 1, 0, 0) if over else (epoch, base, step + 1)
            self._counts["delivered"] += 1
            self._counts["epochs"] += over
            given += 1
            yield batch
            del batch
        if self._closed:
            self._check_open()

    def _batch(self, epoch: int, base: int, step: int) -> Any:
        first, count = self._order.span(epoch, base, step)
        at, rows = self._rows_from(epoch, base, first)
        # With stages behind `batch`, batches do not follow each other in the order.
        follow = 0 if self._order.above else (rows.shape[0] - (first - at)) // count - 1
        columns = self._rows.gather(rows, first - at, count, follow)
        if self._host:
            columns = self._with_host_rows(columns, epoch, base, step)
        return self._made_of(columns, epoch, first)

    def _made_of(self, columns: list[Any], epoch: int, first: int) -> Any:
        each = iter(columns)
        batch = mapped(lambda _: next(each), self._example)
        return self._functions.applied(batch, Rows(self._options.get("seed", 0), epoch, first))

    def _rows_from(self, epoch: int, base: int, first: int) -> tuple[int, Any]:
        """Return a position, and the rows from there on; they include the batch at `first`."""
        size = max(_WINDOW // self._order.batch_size, 1) * self._order.batch_size
        at = first - first % size
        if self._window[:3] != (epoch, base, at):
            self._window = ()  # release it before the next one is made
            count = min(size, self._order.elements(base) - at)
            rows = self._rows.order(
                at, count, lambda p, permute: self._order.indices(p, epoch, base, permute)
            )
            self._window = (epoch, base, at, rows)
        return at, self._window[3]

    # ---- rows that do not fit --------------------------------------------------------------------

    def _with_host_rows(self, columns: list[Any], epoch: int, base: int, step: int) -> list[Any]:
        """Replace rows of a batch by those of the host, and send those of the next batch."""
        at = (epoch, base, step)
        sent = self._sent[1] if self._sent[:1] == (at,) else self._send(*at)
        self._sent = ()
        if step + 1 < self._order.steps(base):
            after = (epoch, base, step + 1)
            self._sent = (after, self._send(*after))
        if sent is None:
            return columns
        where, *rows = self._received(sent)
        return self._rows.replaced(columns, where, rows)

    def _send(self, epoch: int, base: int, step: int) -> Any:
        """Send the rows of a batch that are in memory of the host; None: there are none."""
        first, count = self._order.span(epoch, base, step)
        positions = np.arange(first, first + count, dtype=np.int64)
        rows = self._order.indices(positions, epoch, base, host_permuted)
        kept = self._counts["resident_rows"]
        where = np.flatnonzero(rows >= kept)
        if where.size == 0:
            return None
        chosen = rows[where] - kept
        # One of few lengths, since jax compiles a function for each; places beyond are ignored.
        if self._rows.padded:
            missing = min(1 << (len(where) - 1).bit_length(), count) - len(where)
            where = np.pad(where, (0, missing), constant_values=count)
            chosen = np.pad(chosen, (0, missing))
        batch = [where, *(column[chosen] for column in self._host)]
        self._counts["link_bytes"] += sum(array.nbytes for array in batch)
        return self._started(batch)

    def _started(self, batch: Any) -> Any:
        place = self._rows.place
        return batch if place is None else place.send(batch)

    def _received(self, sent: Any) -> list[Any]:
        place = self._rows.place
        batch = sent if place is None else place.deliver(sent)
        return [self._rows.taken(leaf) for leaf in leaves_of(batch)]

    # ---- reading the rows ------------------------------------------------------------------------

    def _read_in_order(self, epoch: int) -> Iterator[Any]:
        """Read all rows in the order of an epoch, and return its batches meanwhile."""
        began = time.monotonic_ns()
        order, steps = self._order, self._order.steps()
        self._counts["rows"] = order.length
        with self._reader(self._dataset) as loader:
            loader.restore(self.state())
            try:
                batches: Iterator[Any] = itertools.islice(iter(loader), steps)
                one = next(batches)
                self._prepare(one, leaves_of(one))
                if self._host:  # rows that do not fit are read in stored order
                    del one
                    loader.close()
                    self._fill()
                    yield self._batch(epoch, 0, 0)
                    return
                batches = itertools.chain([one], batches)
                del one
                way = Ahead(2).run(lambda: loader, batches, epoch, self._send_all, self._received)
                for step, columns in enumerate(way):
                    first, _ = order.span(epoch, 0, step)
                    if step == 0:
                        self._rows.allocate(columns, order.length)
                    at, rows = self._rows_from(epoch, 0, first)
                    self._rows.scatter(rows, first - at, columns)
                    if step + 1 == steps:
                        self._rows.settle()
                        self._counts["fill_ns"] = time.monotonic_ns() - began
                        self._filled = True
                    yield self._made_of(columns, epoch, first)
            except Exception:
                self._resumed = True  # the next batch is the one that failed
                raise

    def _reader(self, dataset: Any) -> Loader:
        """Return a Loader whose batches lie where the device reads them."""
        return Loader(info_for_device(dataset, [self._rows.place]), **self._options)

    def _send_all(self, batch: Any) -> Any:
        leaves = leaves_of(batch)
        self._counts["link_bytes"] += sum(leaf.nbytes for leaf in leaves)
        return self._started(leaves)

    def _fill(self) -> None:
        """Read all rows, in stored order."""
        began = time.monotonic_ns()
        order, counts = self._order, self._counts
        counts["rows"] = order.length
        stored = order.rows.batch(order.batch_size)
        with self._reader(stored) as batches:
            sent: tuple[int, Any] | None = None
            first = 0
            for batch in batches:
                leaves = leaves_of(batch)
                if first == 0:
                    self._prepare(batch, leaves)
                rows = len(leaves[0])
                fit = min(rows, max(counts["resident_rows"] - first, 0))
                if fit:
                    part = [leaf[:fit] for leaf in leaves]
                    counts["link_bytes"] += sum(leaf.nbytes for leaf in part)
                    now = (first, self._started(part))
                    if sent is not None:
                        self._write(*sent)
                    sent = now
                if fit < rows:
                    at = first + fit - counts["resident_rows"]
                    for column, leaf in zip(self._host, leaves, strict=True):
                        column[at : at + rows - fit] = leaf[fit:]
                first += rows
            if sent is not None:
                self._write(*sent)
        self._rows.settle()
        counts["fill_ns"] = time.monotonic_ns() - began
        self._filled = True

    def _write(self, first: int, sent: Any) -> None:
        columns = self._received(sent)
        if first == 0:
            self._rows.allocate(columns, self._counts["resident_rows"])
        self._rows.write(first, columns)

    def _prepare(self, batch: Any, leaves: list[Any]) -> None:
        """Decide how many rows fit, which are like those of the first batch."""
        counts, length = self._counts, self._order.length
        for number, leaf in enumerate(leaves):
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufcV":
                raise InvalidArgument(
                    f"leaf {number} of a batch, {type(leaf).__name__}, has no type of the device; "
                    "leave it out with map(penstock.select(...))",
                    "device.resident",
                )
        row_bytes = max(sum(leaf.nbytes for leaf in leaves) // len(leaves[0]), 1)
        most = self._most
        if most is None:
            free = self._rows.free_bytes()
            most = length * row_bytes if free is None else free * 9 // 10
        fit = min(most // row_bytes, length)
        if fit == 0:
            raise InvalidArgument(
                f"a row has {row_bytes} bytes, and there is space for {most} on "
                f"{self._rows.name}: not even one row fits",
                "device.resident",
            )
        self._example = mapped(lambda _: None, batch)
        rest = length - fit
        if rest:
            self._host = [np.empty((rest, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        counts["resident_rows"], counts["host_rows"] = fit, rest
        counts["resident_bytes"], counts["host_bytes"] = fit * row_bytes, rest * row_bytes

    # ---- place -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of a pass. Raises `TypeError` if the Dataset repeats for ever."""
        if not self._order.rounds:
            raise TypeError(f"this pass has no end: {self._title}")
        return self._order.steps() * self._order.rounds

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._at[0]

    def state(self) -> dict[str, Any]:
        """Return the position, as `penstock.Loader.state` of the same Dataset and seed."""
        epoch, base, step = self._at
        self._loader._core.seek(epoch, base, step, [])
        return self._loader.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken: by this class or by a Loader of the Dataset.

        Raises
        ------
        InvalidArgument
            The state is of another Dataset or seed, was taken with ``ordered=False`` amid an
            epoch, or is of another number of ranks where the rows are one rank's share.
        """
        self._check_open()
        self._loader._check_state(state)
        if state.get("ahead"):
            raise InvalidArgument(
                "the state is of a feed with ordered=False; restore it there", "restore"
            )
        self._loader.restore(state)
        epoch, base, step = self._loader._core.position()
        if base and self._order.sharded_rows:
            raise InvalidArgument(
                "the state is of another number of ranks, and the rows here are one rank's share: "
                "put shard behind shuffle, so that each rank keeps all rows",
                "restore",
            )
        self._at = (int(epoch), int(base), int(step))
        self._resumed = True
        self._serial += 1
        self._sent = ()

    # ---- looking, ending -------------------------------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """The schema of a batch in memory of the host, as `penstock.Dataset.element_spec`.

        With functions of a device, that of their results, as of `penstock.torch.feed`.
        """
        return self._functions.spec(self._loader.element_spec)

    def stats(self) -> dict[str, Any]:
        """Return counters.

        Returns
        -------
        dict
            ``device``; ``rows``, of which ``resident_rows`` are on the device and ``host_rows`` in
            memory of the host, with ``resident_bytes`` and ``host_bytes``; ``link_bytes`` that were
            sent to the device since it was made, which stops growing after the rows were read
            unless there are ``host_rows``; ``fill_ns``, the time to read the rows; ``delivered``
            batches, finished ``epochs``.
        """
        return {"device": self._rows.name, **self._counts}

    def __repr__(self) -> str:
        batches = len(self) if self._order.rounds else "endless"
        return shown(self, self._title, device=self._rows.name, batches=batches)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the rows were released by close(); make another one", "device.resident")

    def close(self) -> None:
        """Release the memory of the device. Held batches stay valid."""
        self._closed = True
        self._serial += 1
        self._window = self._sent = ()
        self._host = []
        self._rows.close()
        self._loader.close()
