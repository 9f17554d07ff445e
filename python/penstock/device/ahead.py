"""Keeps batches of a Loader on their way to a device, and the position before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from ..loader import Loader


class Ahead:
    """Sends up to `most` batches more than were delivered. The consumer's thread does all of it.

    The first batch is delivered before others are sent: what a device allocates and pins for them
    does not delay the first step.

    Parameters
    ----------
    most : int
        Batches in transfer, besides the one that is delivered.
    always : bool
        Wait for the host to make these batches. False: send those that are ready, so that a
        delivery never waits for a later batch.
    """

    def __init__(self, most: int, *, always: bool = False) -> None:
        self.most = most
        self._always = always
        # Each with the position before it.
        self._sent: deque[tuple[str, Any]] = deque()
        self._unsent: tuple[str, Any] | None = None  # there is no device memory for it yet
        self._sending = ""
        self._runs = 0
        self._delivered = False  # a batch, ever

    @property
    def position(self) -> str | None:
        """The position before the batches in transfer, as JSON; None: there are none."""
        first = self._sent[0] if self._sent else self._unsent
        return None if first is None else first[0]

    @property
    def sending(self) -> str:
        """The position before the batch that is sent now, as JSON."""
        return self._sending

    def forget(self) -> None:
        """Drop batches in transfer: another iteration begins, or the position was set.

        REQUIRED: no other thread iterates.
        """
        self._sent.clear()
        self.leave()

    def leave(self) -> None:
        """End the iteration, which drops its batches when it is asked for the next one.

        Any thread may call it.
        """
        self._sent, self._unsent = deque(), None

    def run(
        self,
        loader: Callable[[], Loader],
        batches: Iterator[Any],
        epoch: int | None,
        send: Callable[[Any], Any],
        deliver: Callable[[Any], Any] | None = None,
    ) -> Iterator[Any]:
        """Iterate over the batches of `epoch`, or of several if it is None.

        Parameters
        ----------
        loader : callable
            Returns the Loader, whose position counts batches that were sent; `position` does not.
        batches : iterator
            The Loader's batches.
        epoch : int, optional
            The epoch that ends the iteration.
        send : callable
            Begins a batch's transfer and returns at once.
        deliver : callable, optional
            Makes the consumer's batch of the result of `send`, when the consumer asks for it.
        """
        self.forget()
        self._runs += 1
        return self._run(loader, batches, epoch, send, deliver)

    def _run(
        self,
        loader: Callable[[], Loader],
        batches: Iterator[Any],
        epoch: int | None,
        send: Callable[[Any], Any],
        deliver: Callable[[Any], Any] | None,
    ) -> Iterator[Any]:
        sent, run = self._sent, self._runs
        error: BaseException | None = None
        over, in_transfer = False, 0
        while sent is self._sent:
            while not over and self._wants_more(loader()):
                # Request nothing from an epoch that has ended: its hooks must run after its last
                # batch was delivered.
                if sent and _is_over(loader(), epoch):
                    break
                try:
                    self._unsent = self._unsent or (loader()._core.state(), next(batches))
                except StopIteration:
                    over = True
                except Exception as raised:  # raised later, at its own place
                    error, over = raised, True
                if over or not self._sends(send):
                    break
            if not sent:
                break
            self._delivered = True
            in_transfer = len(sent) - 1
            yield _first(sent, deliver)  # no variable keeps it: the consumer may drop it
        if error is not None:
            raise error
        if sent is not self._sent:  # dropped, perhaps by another thread: the host says why
            if in_transfer:
                loader()._core.check_open()
                if run != self._runs:
                    raise InvalidArgument(
                        "this iteration was overtaken: a later one was begun before its end, and "
                        "its batches in transfer were dropped. Nested loops need a Loader for each "
                        "iteration",
                        "Loader",
                    )
            next(batches, None)

    def _wants_more(self, loader: Loader) -> bool:
        if not self._sent:
            return True
        if not self._delivered:
            return False
        return len(self._sent) <= self.most and (self._always or loader._core.ready() > 0)

    def _sends(self, send: Callable[[Any], Any]) -> bool:
        """Send the next batch. False: the device has no memory for it now."""
        unsent = self._unsent
        if unsent is None:  # close() of another thread
            return False
        before, batch = unsent
        self._sending = before
        try:
            self._sent.append((before, send(batch)))
        except MemoryError:
            if not self._sent:
                raise
            self.most = len(self._sent) - 1  # a smaller ring
            return False
        self._unsent = None
        return True


def _first(sent: deque[tuple[str, Any]], deliver: Callable[[Any], Any] | None) -> Any:
    """Deliver the first batch; if that raises, the position is this batch."""
    batch = sent[0][1]
    if deliver is not None:
        batch = deliver(batch)
    sent.popleft()
    return batch


def _is_over(loader: Loader, epoch: int | None) -> bool:
    """Whether the pass of `epoch` was delivered; for a Dataset, a pass is all rounds.

    None: whether an epoch was delivered that hooks have to end.
    """
    if epoch is None:
        epoch = loader._epochs.open
    info = loader._info
    at = loader._core.position()[0]
    return epoch is not None and bool(info.pass_of(at) != info.pass_of(epoch))
