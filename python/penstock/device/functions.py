"""Functions that run on a device, behind the batches of a Dataset: `Dataset.map(f, device=...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from ..dataset import Dataset
    from .place import Place

Function = Callable[..., Any]


class DeviceMapped:
    """A Dataset with functions that run on a device. The result of `Dataset.map` with ``device=``.

    It goes into `penstock.torch.feed`, `penstock.jax.feed`, `penstock.keras.feed` or
    `penstock.device.resident`, and has only `map`, since the host never sees the results.
    Immutable; any thread.
    """

    def __init__(self, dataset: Dataset, device: Any, functions: tuple[Function, ...]) -> None:
        self._dataset = dataset
        self._device = device
        self._functions = functions

    def map(self, function: Function, *, device: Any = None) -> DeviceMapped:
        """Apply another function on the same device."""
        if device is None or not same_device(device, self._device):
            raise InvalidArgument(
                f"device is {device!r} and that of the map before is {self._device!r}; give the "
                "same one",
                "map",
            )
        return DeviceMapped(self._dataset, device, (*self._functions, checked(function)))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(type(self._dataset), name):
            self._refuse(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> NoReturn:
        self._refuse("iter")

    def __len__(self) -> int:
        """Batches of a pass, as of the Dataset."""
        return len(self._dataset)

    def _source_info(self, _on_error: str) -> NoReturn:
        self._refuse("Loader")

    def _refuse(self, operation: str) -> NoReturn:
        raise InvalidArgument(
            f"functions of a device come last: give {self!r} to the feed of penstock.torch, "
            "penstock.jax or penstock.keras, or to penstock.device.resident, and put other stages "
            "before them",
            operation,
        )

    def __repr__(self) -> str:
        return f"{self._dataset!r} > map(device={self._device!r}) x {len(self._functions)}"


@dataclass(frozen=True)
class Rows:
    """The address of a batch's rows: of the random numbers that a stage before `batch` draws."""

    seed: int
    epoch: int
    first: int  # position of the first row
    operation: int = 0  # the stage's number in its plan


class BatchFunction:
    """A function of a device that gets the batch itself, even if it is a tuple, and its rows."""

    random = False  # it draws random numbers

    def __call__(self, batch: Any, rows: Rows) -> Any:
        raise NotImplementedError


def same_device(one: Any, other: Any) -> bool:
    """Whether both name one device: "cuda:0" and ``torch.device("cuda:0")`` do."""
    return bool(one == other or str(one) == str(other))


def checked(function: Any) -> Function:
    """Return a function for a device, or raise an error if it is not one."""
    if not callable(function):
        raise InvalidArgument(
            f"{function!r} is not a function of a device; native operations run in the workers, "
            "without device=",
            "map",
        )
    return function  # type: ignore[no-any-return]


class Functions:
    """The functions behind a Dataset, one after the other; false if there are none.

    Parameters
    ----------
    source : object
        Any source of a feed.
    """

    def __init__(self, source: Any) -> None:
        self.source, self.device = source, None  # without the functions; their device
        self._each: tuple[Function, ...] = ()
        self._first_operation = 0
        self.batch_size = 0
        if not isinstance(source, DeviceMapped):
            return
        self.source, self.device, self._each = source._dataset, source._device, source._functions
        self._first_operation, self.batch_size = self.source._operations() + 1, 0
        if any(isinstance(each, BatchFunction) and each.random for each in self._each):
            self.batch_size = self.source._batch_size("map")

    def __bool__(self) -> bool:
        return bool(self._each)

    def check_device(self, given: Any, same: bool) -> None:
        """Raise an error unless they run on the device that batches go to."""
        if self and not same:
            raise InvalidArgument(
                f"batches go to {given!r}, and functions of the Dataset run on {self.device!r}; "
                "give one device",
                "map",
            )

    def applied(self, batch: Any, rows: Rows) -> Any:
        """Return the results for one batch. A tuple is given as arguments."""
        for number, function in enumerate(self._each):
            if isinstance(function, BatchFunction):
                batch = function(batch, replace(rows, operation=self._first_operation + number))
            else:
                batch = function(*batch) if isinstance(batch, tuple) else function(batch)
        return batch


class Worked:
    """A `Place` whose batches functions change, ahead of the consumer and in order.

    On a CUDA device they run on a stream of their own, which the consumer's stream waits for. An
    exception is raised when its batch is delivered.

    Parameters
    ----------
    rows : callable
        Returns the rows of the batch that is sent now.
    send, deliver : callable
        Those of a `Place`.
    cuda : str, optional
        The device of the stream, such as "cuda:0". None: functions run where `deliver` leaves them.
    """

    def __init__(
        self,
        functions: Functions,
        rows: Callable[[], Rows],
        send: Callable[[Any], Any],
        deliver: Callable[[Any], Any],
        cuda: str | None = None,
    ) -> None:
        self._functions, self._rows = functions, rows
        self._send, self._deliver = send, deliver
        self._stream: Any = None
        if cuda is not None:
            import torch

            self._stream = torch.cuda.Stream(cuda)

    def send(self, batch: Any) -> Any:
        """Begin the transfer, and enqueue the functions behind it."""
        sent = self._send(batch)
        try:
            return self._enqueued(sent)
        except Exception as error:
            return _Failed(error)

    def _enqueued(self, sent: Any) -> Any:
        if self._stream is None:
            return self._functions.applied(self._deliver(sent), self._rows())
        import torch

        with torch.cuda.stream(self._stream):
            given = self._deliver(sent)
            del sent
            # A buffer of the feed is used again after the work of this stream alone: what is
            # handed to the consumer's stream must have memory of its own.
            own = {_storage(leaf) for leaf in leaves_of(given)} - {None}
            made = self._functions.applied(given, self._rows())
            made = mapped(lambda leaf: leaf.clone() if _storage(leaf) in own else leaf, made)
            return made, self._stream.record_event()

    def deliver(self, sent: Any) -> Any:
        """Return the result for the consumer's current stream, or raise the functions' error."""
        if isinstance(sent, _Failed):
            raise sent.error
        if self._stream is None:
            return sent
        import torch

        batch, event = sent
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_event(event)
        for leaf in leaves_of(batch):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)
        return batch


def worked(place: Place, functions: Functions, rows: Callable[[], Rows]) -> Worked:
    """Return the way to a device of torch's, and through the functions there."""
    from .place import CudaDevice

    cuda = place.name if isinstance(place, CudaDevice) else None
    return Worked(functions, rows, place.send, place.deliver, cuda)


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _storage(leaf: Any) -> int | None:
    """Return the address of a tensor's memory; None: it is no tensor of a device."""
    if not getattr(leaf, "is_cuda", False):
        return None
    return int(leaf.untyped_storage().data_ptr())
