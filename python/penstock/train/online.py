"""Online: a model that predicts and learns from a live stream of messages."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _engine
from ..base.arguments import integer, one_of, path, real
from ..base.conventions import Closing, name_of, shown
from ..base.nests import leaves_of
from ..errors import Closed, InvalidArgument
from .channel import Channel
from .mqtt import MqttClient
from .online_models import model_of
from .online_results import results_of
from .online_snapshot import read_snapshot, write_snapshot
from .online_view import View
from .online_windows import Message, Windows
from .rows import array_of

__all__ = ["Message", "Online", "OnlineStep"]

_FLUSHES = {"always": 0, "never": -1}
_POLL_NS = 100_000_000
_FILE_BYTES = 64 << 20  # of a file of the spool, after which the next one begins
_FACTS = ("received", "replayed", "duplicates", "spooled", "malformed", "trained")  # of a report


class OnlineStep(NamedTuple):
    """One batch, after it was predicted and trained on."""

    messages: list[Any]  # of each row: a `Message`, an iterator's object, or a window of them
    inputs: Any  # what `prepare` returned
    predictions: Any  # made before the model was trained on the batch
    loss: float
    ages: npt.NDArray[np.float64]  # of each row: seconds from its (last) message to its prediction
    offset: int  # the number of the message that comes after this batch


class Online(Closing):
    """Predict and train on a stream as it arrives.

    A native thread receives messages into a bounded queue. Whenever the model is free, it takes all
    messages that are there, at most ``max_batch``: predicts, trains on the same batch, and hands
    the result on. So a fast model works message by message, and a slow one in larger batches.

    With ``spool`` each message is written to a log before it is acknowledged, and snapshots of the
    model have the number of the next message. After a crash, also SIGKILL or a loss of power, the
    run goes on from the snapshot with the messages that follow it in the log: nothing that was
    acknowledged is lost, and no message is in the weights twice.

    Threads: `run`, iteration and `snapshot` in one thread; `stop` and `stats` in any. A context
    manager that closes. In a forked child it is the parent's: closing does nothing, and other
    methods raise `InvalidArgument`.

    Parameters
    ----------
    source : iterable, Channel or message source
        ``train.mqtt(...)``; a `train.channel`, until it is closed; or any iterable. A thread
        iterates it. Items of type bytes, or (topic, bytes), become `Message`; others are handed
        over as they are.
    prepare : callable
        ``prepare(messages)`` returns the batch that the model wants, one row for each message (each
        window, with ``window``). For a Keras model or a torch module: ``(x, y)``. For torch,
        tensors, or NumPy arrays, which go to the module's device.
    model : object
        With methods ``predict(batch)`` and ``train(batch)``, which returns the loss; to be
        snapshot also with ``state()``, a nest of arrays and numbers, and ``restore(state)``. Or a
        compiled Keras model. Or a torch module, with ``optimizer`` and ``loss``.
    optimizer, loss : optional
        Of a torch module: its optimizer, and ``loss(predictions, y)``.
    max_batch : int
        The most messages of one batch.
    min_batch, max_wait : int, float
        Wait for ``min_batch`` messages, at most ``max_wait`` seconds from the oldest one's receipt.
    when_full : {"block", "drop_oldest", "drop_newest"}
        If the queue is full: stop reading from the source; drop the oldest queued message; drop the
        new one. A message dropped as the oldest is still in the spool.
    max_queue, max_queue_bytes : int
        The size of the queue, in messages and in bytes: of topics and payloads, or of the arrays of
        other objects.
    spool : path, optional
        A folder for the log and the snapshot. One process at a time. Messages must be bytes.
    fsync : {"always", "never"} or float
        When the log is flushed to disk: after each write; by the system; at least every so many
        seconds. Messages are acknowledged after it.
    ack : {"spooled", "after_train"}, optional
        When a message is acknowledged: once it is in the spool; once it was trained on, too.
        Default: "spooled" if there is a spool. Without a spool, messages acknowledged after the
        last snapshot are lost in a crash, with their training.
    on_batch : callable, path or MqttClient, optional
        ``on_batch(step)``, with an `OnlineStep`, after each batch. A path: a line of JSON for each
        batch (``offset``, ``messages``, ``loss``, ``age`` of the oldest message, ``predictions``)
        is appended to that file. A `train.mqtt` client of one topic: the line is published there.
    snapshot : path, optional
        The snapshot's file. Default: ``snapshot`` in the spool, if there is one.
    snapshot_seconds, snapshot_steps : float, int, optional
        The time and the number of steps between two snapshots. One is made at the end, too.
    on_malformed : {"skip", "raise"}
        If ``prepare`` or ``key`` raises for a message: count and skip it, with a warning for the
        first one; or raise. With ``window`` each window for which ``prepare`` raises counts.
    pad_to : sequence of int, optional
        Batches are padded to the next of these sizes by repeating their last row, for models that
        are compiled for each shape. ``train(batch, weights)`` then gets the weight of each row, 0
        for padding and ``padded / rows`` for others, so that a mean over the padded batch is that
        over its rows. Predictions are cut. Default: for Keras on jax and tensorflow, powers of 4.
    window, step, key : int, int, callable, optional
        The model sees windows of the last ``window`` messages of each ``key(message)`` (default:
        the topic; messages without one are one sequence), one every ``step`` messages. ``prepare``
        gets a list of windows, which are lists of messages. Messages that complete no window
        count as trained.
    publish, publish_seconds : callable, float, optional
        ``publish()`` is called every ``publish_seconds``, between batches: for `train.publish`.

    Raises
    ------
    InvalidArgument
        Invalid arguments; the spool is in use by another process; the snapshot is of another model.
    DataLoss
        The log is damaged before its end, or does not belong to the snapshot.
    System
        From `run` and `snapshot`: the disk of the spool or the snapshot is full, or fails. Make
        another `Online` when it has space: nothing that was acknowledged is lost.
    Closed
        From `run`: the source gave up, for the reason in the error.

    Examples
    --------
    >>> source = train.mqtt("mqtt://localhost/sensors/+/value", qos=1)
    >>> live = train.Online(source, prepare, model, max_batch=256, spool="run/spool")
    >>> live.run()
    """

    def __init__(
        self,
        source: Any,
        prepare: Callable[[list[Any]], Any],
        model: Any,
        *,
        optimizer: Any = None,
        loss: Callable[[Any, Any], Any] | None = None,
        max_batch: int = 256,
        min_batch: int = 1,
        max_wait: float = 0.0,
        when_full: str = "block",
        max_queue: int = 65_536,
        max_queue_bytes: int = 64 << 20,
        spool: str | os.PathLike[str] | None = None,
        fsync: str | float = 0.01,
        ack: str | None = None,
        on_batch: Callable[[OnlineStep], object]
        | str
        | os.PathLike[str]
        | MqttClient
        | None = None,
        snapshot: str | os.PathLike[str] | None = None,
        snapshot_seconds: float | None = 60.0,
        snapshot_steps: int | None = None,
        on_malformed: str = "skip",
        pad_to: Sequence[int] | None = None,
        window: int | None = None,
        step: int = 1,
        key: Callable[[Any], Any] | None = None,
        publish: Callable[[], object] | None = None,
        publish_seconds: float = 10.0,
    ) -> None:
        if not callable(prepare):
            raise InvalidArgument(f"prepare is {prepare!r}; give a function", "Online")
        one_of("when_full", when_full, ("block", "drop_oldest", "drop_newest"), "Online")
        one_of("on_malformed", on_malformed, ("skip", "raise"), "Online")
        ack = ack or ("after_train" if spool is None else "spooled")
        one_of("ack", ack, ("spooled", "after_train"), "Online")
        if ack == "spooled" and spool is None:
            raise InvalidArgument('ack is "spooled"; give a folder as spool', "Online")
        _check_source(source)
        self._source, self._prepare = source, prepare
        self._max_batch = integer("max_batch", max_batch, 1, 1 << 24, operation="Online")
        self._min_batch = integer("min_batch", min_batch, 1, max_batch, operation="Online")
        self._max_wait = int(_seconds("max_wait", max_wait) * 1e9)
        if self._min_batch > 1 and self._max_wait == 0:
            raise InvalidArgument(
                f"min_batch is {min_batch}, but max_wait is 0; give seconds to wait", "Online"
            )
        self._model = model_of(model, optimizer, loss, self._max_batch, pad_to)
        self._windows = None if window is None else Windows(window, step, key)
        self._on_malformed = on_malformed
        self._publish, self._publish_ns = publish, _seconds("publish_seconds", publish_seconds)
        folder = None if spool is None else path(spool, "Online")
        self._snapshot = None if snapshot is None else path(snapshot, "Online")
        if self._snapshot is None and folder is not None:
            self._snapshot = os.path.join(folder, "snapshot")
        self._snapshot_seconds = snapshot_seconds and _seconds("snapshot_seconds", snapshot_seconds)
        self._snapshot_steps = snapshot_steps and integer(
            "snapshot_steps", snapshot_steps, 1, operation="Online"
        )
        if self._snapshot is not None and not self._model.restorable:
            raise InvalidArgument(
                f"{name_of(model)} has no state() and restore(), which snapshots need", "Online"
            )
        self._malformed = self._predicted = self._trained = self._batches = 0
        self._malformed_error: str | None = None
        self._offset = 0  # the next message that no step has passed
        if self._snapshot is not None and os.path.exists(self._snapshot):
            self._restore(read_snapshot(self._snapshot))
        if fsync in _FLUSHES:
            fsync_ns = _FLUSHES[fsync]
        elif isinstance(fsync, str):
            raise InvalidArgument(
                f"fsync is {fsync!r}; give 'always', 'never' or seconds", "Online"
            )
        else:
            fsync_ns = int(_seconds("fsync", fsync) * 1e9)
        self._results = results_of(on_batch)
        self._queue = _engine.MessageQueue.make(
            integer("max_queue", max_queue, 1, operation="Online"),
            integer("max_queue_bytes", max_queue_bytes, 1, operation="Online"),
            when_full,
            ack == "after_train",
            folder,
            fsync_ns,
            _FILE_BYTES,
            self._offset,
        )
        self._stop = threading.Event()
        self._pending: tuple[list[Any], int] | None = None  # taken, not trained, and what follows
        self._feeder: threading.Thread | None = None
        self._feed_error: BaseException | None = None
        self._started: float | None = None
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=64)
        self._losses: deque[float] = deque(maxlen=64)
        self._snapshot_at = self._published_at = time.monotonic()
        self._snapshot_batch = self._batches
        self._closed = False

    def __iter__(self) -> Iterator[OnlineStep]:
        """Yield an `OnlineStep` for each batch until the source ends or `stop` is called."""
        self._start()
        try:
            while not self._stop.is_set():
                if self._pending is None and not self._take():
                    if self._queue.finished:
                        break
                    continue
                done = self._step()
                self._tick()
                if done is not None:
                    yield done
        finally:
            self._stop.clear()
        if self._feed_error is not None:
            error, self._feed_error = self._feed_error, None
            raise error

    def run(self, steps: int | None = None, watch: bool = False) -> None:
        """Run until the source ends, `stop` is called, or after so many batches.

        May be called again, also after an error of the model or of ``prepare``: the batch that was
        not trained on is tried again. Makes a snapshot before it returns.

        Parameters
        ----------
        steps : int, optional
            The most batches.
        watch : bool
            Show rates, ages, batch sizes and the loss meanwhile; also the last prediction if it is
            a number, and the truth if the batch is a pair ``(x, y)``. On a terminal the view is
            redrawn in place, elsewhere it is a line each second.
        """
        most = None if steps is None else integer("steps", steps, 0, operation="Online")
        done = 0
        view = View(self.stats) if watch else None
        with view or contextlib.nullcontext():
            if most != 0:
                for step in self:
                    if view is not None:
                        view.seen(step)
                    done += 1
                    if done == most:
                        break
        self.snapshot()

    def snapshot(self) -> None:
        """Write the model's state and the number of the next message, and trim the log.

        The old snapshot is whole until the new one is on the disk. Does nothing without a file for
        snapshots.
        """
        if self._snapshot is None:
            return
        self._queue.sync()  # no offset of a snapshot is missing in the log
        state = {
            "offset": self._offset,
            "model": self._model.state(),
            "windows": None if self._windows is None else self._windows.state(),
            "counts": [self._malformed, self._predicted, self._trained, self._batches],
        }
        write_snapshot(self._snapshot, state)
        self._queue.trim(self._offset)
        self._snapshot_at = time.monotonic()
        self._snapshot_batch = self._batches

    def stop(self) -> None:
        """End `run` after the batch it is at, or as soon as it begins. Any thread, also a signal
        handler."""
        self._stop.set()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML page: rates, ages and batch sizes over time, and whether
        the model keeps up.

        Raises
        ------
        OSError
            The file could not be written.
        """
        facts = {name: f"{value:,}" for name, value in self.stats().items() if name in _FACTS}
        page = self._queue.report_html(name_of(self._source), self._max_batch, list(facts.items()))
        Path(path).write_text(page, encoding="utf-8")

    def analysis(self) -> dict[str, Any]:
        """Return whether the model keeps up, and what to change, from the counters so far."""
        result: dict[str, Any] = self._queue.analysis(self._max_batch)
        return result

    def close(self) -> None:
        """Stop the source, and close the log. Messages that are queued are in the spool, or were
        not acknowledged."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        self._queue.close()
        if self._feeder is not None and self._feeder is not threading.current_thread():
            self._feeder.join(timeout=1.0)
        self._results.close()

    def stats(self) -> dict[str, Any]:
        """Return counts, rates and ages.

        Returns
        -------
        dict
            Messages: ``received``, ``spooled``, ``replayed`` (read from the log after a restart),
            ``duplicates`` (redelivered ones), ``dropped``, ``malformed``, ``predicted``,
            ``trained``, ``queued``, ``queued_bytes``. ``batches``, ``batch_size`` (mean),
            ``largest_batch``, ``batch_sizes`` (a dict of the number of batches with 1, 2 to 3, 4 to
            7, ... messages, by the least of these), ``rate`` (messages trained per second, lately),
            ``loss`` (mean of the last 64 batches; NaN: none). ``age_p50``, ``age_p99``,
            ``age_max``: seconds from receipt to prediction. ``torn_bytes``: cut off the log's end
            when it was opened. ``offset``: the next message. ``source``: what the source tells, or
            {}. ``malformed_error``: what ``prepare`` raised last for a malformed message, or None.
            ``malformed``, ``predicted``, ``trained`` and ``batches`` go on across restarts.
        """
        counts: dict[str, Any] = self._queue.counts()
        recent, losses = list(self._recent), list(self._losses)
        (begin, before), (end, after) = recent[0], recent[-1]
        counts["source"] = json.loads(counts["source"] or "{}")
        return {
            **counts,
            "malformed": self._malformed,
            "malformed_error": self._malformed_error,
            "predicted": self._predicted,
            "trained": self._trained,
            "batches": self._batches,
            "batch_size": self._trained / self._batches if self._batches else 0.0,
            "rate": (after - before) / (end - begin) if end > begin else 0.0,
            "loss": sum(losses) / len(losses) if losses else math.nan,
            "offset": self._offset,
        }

    def __repr__(self) -> str:
        return shown(self, name_of(self._source), trained=self._trained, batches=self._batches)

    def _restore(self, state: dict[str, Any]) -> None:
        self._offset = state["offset"]
        try:
            self._model.restore(state["model"])
        except Exception as error:
            raise InvalidArgument(
                f"{self._snapshot} does not fit the model: {error}; give the model that it is of, "
                "or another folder",
                "Online",
            ) from error
        if self._windows is not None and state["windows"] is not None:
            self._windows.restore(state["windows"])
        self._malformed, self._predicted, self._trained, self._batches = state["counts"]

    def _start(self) -> None:
        if self._closed:
            raise InvalidArgument("this Online is closed; make another", "Online")
        if self._started is not None:
            return
        self._started = time.monotonic()
        native = getattr(self._source, "_message_source", self._source)
        if isinstance(native, _engine.MessageSource):
            self._queue.start(native)
            return
        self._feeder = threading.Thread(target=self._feed, name="penstock online", daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        """Put the items of the source into the queue, in a thread of its own."""
        try:
            for item in self._items():
                while not self._queue.wait_for_space(_POLL_NS):
                    if self._closed:
                        return
                if isinstance(item, bytes):
                    self._queue.put("", item)
                elif _is_message(item):
                    self._queue.put(item[0], item[1])
                else:
                    self._queue.put_object(item, _bytes_of(item))
                if self._closed:
                    return
        except BaseException as error:
            self._feed_error = error
        finally:
            self._queue.ended("")

    def _items(self) -> Iterator[Any]:
        if not isinstance(self._source, Channel):
            yield from self._source
            return
        with contextlib.suppress(Closed):  # it was closed: the end of the stream
            while not self._closed:
                yield from self._source.get(256, timeout=_POLL_NS * 1e-9, stack=False) or ()

    def _take(self) -> bool:
        messages = self._queue.take(
            self._max_batch, self._min_batch, self._max_wait, _POLL_NS, Message
        )
        if not messages:
            return False
        self._pending = messages, self._queue.next_offset
        return True

    def _step(self) -> OnlineStep | None:
        """Predict and train on the pending batch. An error leaves it pending."""
        assert self._pending is not None
        messages, offset = self._pending
        count = len(messages)
        without = 0  # messages without a key
        ends = list(range(count))  # of each row, the last of its messages
        if self._windows is not None:
            errors: list[Exception] = []
            messages, ends = self._windows.look(messages, errors.append)
            without = len(errors)
            if errors and self._on_malformed == "raise":
                raise errors[0]
            for error in errors:
                self._tell_malformed("key", error)
        inputs, rows = self._prepared(messages)
        malformed = without + len(messages) - len(rows)
        count -= without
        if not rows:
            self._pass(offset, count, malformed)
            self._queue.aged()
            return None
        kept = [messages[row] for row in rows]
        predictions = self._model.predict(inputs, len(kept))
        ages = np.array(self._queue.aged(), np.float64)[[ends[row] for row in rows]] * 1e-9
        self._predicted += count if self._windows is not None else len(kept)
        loss = float(array_of(self._model.train(inputs, len(kept))))
        self._pass(offset, count, malformed)
        self._batches += 1
        self._recent.append((time.monotonic(), self._trained))
        self._losses.append(loss)
        done = OnlineStep(kept, inputs, predictions, loss, ages, offset)
        self._results.put(done)
        return done

    def _pass(self, offset: int, count: int, malformed: int) -> None:
        """The pending batch is done: from here on it is never trained on again."""
        if self._windows is not None:
            self._windows.advance()
        self._pending = None
        self._offset = offset
        self._malformed += malformed
        self._trained += count if self._windows is not None else count - malformed
        self._queue.trained(offset)

    def _prepared(self, messages: list[Any]) -> tuple[Any, list[int]]:
        """Return the batch, and the indices of its messages: all but malformed ones."""
        if not messages:
            return None, []
        try:
            return self._prepare(messages), list(range(len(messages)))
        except Exception:
            if self._on_malformed == "raise":
                raise
            kept = [row for row, message in enumerate(messages) if self._is_sound(message)]
            if len(kept) == len(messages):
                raise  # each alone is sound: an error of prepare itself
        return (self._prepare([messages[row] for row in kept]) if kept else None), kept

    def _is_sound(self, message: Any) -> bool:
        try:
            self._prepare([message])
        except Exception as error:
            self._tell_malformed("prepare", error)
            return False
        return True

    def _tell_malformed(self, what: str, error: Exception) -> None:
        first = self._malformed_error is None
        self._malformed_error = f"{type(error).__name__}: {error}"
        if first:
            warnings.warn(
                f"{what} raised {self._malformed_error}; such messages are skipped and counted as "
                'malformed (on_malformed="raise" raises)',
                RuntimeWarning,
                stacklevel=2,
            )

    def _tick(self) -> None:
        """What is due between two batches."""
        now = time.monotonic()
        if self._publish is not None and now - self._published_at >= self._publish_ns:
            self._published_at = now
            self._publish()
        by_time = self._snapshot_seconds and now - self._snapshot_at >= self._snapshot_seconds
        by_steps = (
            self._snapshot_steps and self._batches - self._snapshot_batch >= self._snapshot_steps
        )
        if by_time or by_steps:
            self.snapshot()


def _check_source(source: Any) -> None:
    native = getattr(source, "_message_source", source)
    iterable = hasattr(native, "__iter__") or hasattr(native, "__getitem__")
    if iterable or isinstance(native, (_engine.MessageSource, Channel)):
        return
    raise InvalidArgument(
        f"the source is a {type(source).__name__}; give an iterable, a train.channel or train.mqtt",
        "Online",
    )


def _seconds(name: str, value: Any) -> float:
    seconds = real(name, value, "Online")
    if not 0 <= seconds <= 1e9:
        raise InvalidArgument(f"{name} is {value!r}; give seconds, 0 or more", "Online")
    return seconds


def _is_message(item: Any) -> bool:
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], bytes)
    )


def _bytes_of(item: Any) -> int:
    """About the memory of an item."""
    return sum(getattr(leaf, "nbytes", None) or sys.getsizeof(leaf) for leaf in leaves_of(item))
