"""Functions that run on a device, behind the batches of a Dataset: `Dataset.map(f, device=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..base.nests import leaves_of, mapped
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from ..dataset import Dataset
    from .place import Place

Function = Callable[..., Any]


class DeviceMapped:
    """A Dataset with functions that run on a device. The result of `Dataset.map` with ``device=``.

    It goes into `penstock.torch.feed`, `penstock.jax.feed` or `penstock.device.resident`, and has
    only `map`, since the host never sees the results. Immutable; any thread.
    """

    def __init__(self, dataset: Dataset, device: Any, functions: tuple[Function, ...]) -> None:
        self._dataset = dataset
        self._device = device
        self._functions = functions

    def map(self, function: Function, *, device: Any = None) -> DeviceMapped:
        """Apply another function on the same device."""
        if device is None or device != self._device:
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
            f"functions of a device come last: give {self!r} to penstock.torch.feed, "
            "penstock.jax.feed or penstock.device.resident, and put other stages before them",
            operation,
        )

    def __repr__(self) -> str:
        return f"{self._dataset!r} > map(device={self._device!r}) x {len(self._functions)}"


class BatchFunction:
    """A function of a device that gets the batch itself, even if it is a tuple."""

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError


def checked(function: Any) -> Function:
    """Return a function for a device, or raise an error if it is not one."""
    if not callable(function):
        raise InvalidArgument(
            f"{function!r} is not a function of a device; native operations run in the workers, "
            "without device=",
            "map",
        )
    return function  # type: ignore[no-any-return]


def taken_apart(source: Any) -> tuple[Any, Any, tuple[Function, ...]]:
    """Return a source without its functions, their device (None: it has none), and the functions.

    The functions get a tuple as their arguments.
    """
    if not isinstance(source, DeviceMapped):
        return source, None, ()
    return source._dataset, source._device, source._functions


def applied(functions: tuple[Function, ...], batch: Any) -> Any:
    """Return the result of all functions, one after the other."""
    for function in functions:
        whole = isinstance(function, BatchFunction) or not isinstance(batch, tuple)
        batch = function(batch) if whole else function(*batch)
    return batch


class Worked:
    """A `Place` whose batches functions change, ahead of the consumer and in order.

    On a CUDA device they run on a stream of their own, which the consumer's stream waits for. An
    exception is raised when its batch is delivered.

    Parameters
    ----------
    send, deliver : callable
        Those of a `Place`.
    cuda : str, optional
        The device of the stream, such as "cuda:0". None: functions run where `deliver` leaves them.
    """

    def __init__(
        self,
        functions: tuple[Function, ...],
        send: Callable[[Any], Any],
        deliver: Callable[[Any], Any],
        cuda: str | None = None,
    ) -> None:
        self._functions = functions
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
            return applied(self._functions, self._deliver(sent))
        import torch

        with torch.cuda.stream(self._stream):
            given = self._deliver(sent)
            del sent
            # A buffer of the feed is used again after the work of this stream alone: what is
            # handed to the consumer's stream must have memory of its own.
            own = {_storage(leaf) for leaf in leaves_of(given)} - {None}
            made = applied(self._functions, given)
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


def worked(place: Place, functions: tuple[Function, ...]) -> Worked:
    """Return the way to a device of torch's, and through the functions there."""
    from .place import CudaDevice

    cuda = place.name if isinstance(place, CudaDevice) else None
    return Worked(functions, place.send, place.deliver, cuda)


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _storage(leaf: Any) -> int | None:
    """Return the address of a tensor's memory; None: it is no tensor of a device."""
    if not getattr(leaf, "is_cuda", False):
        return None
    return int(leaf.untyped_storage().data_ptr())
