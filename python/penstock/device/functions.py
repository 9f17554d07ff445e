"""Functions that run on a device, behind the batches of a Dataset: `Dataset.map(f, device=...)`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..base.element_spec import TensorSpec, spec_of_value
from ..base.interop import tensor_of_leaf
from ..base.nests import leaves_of, mapped, mapped_through
from ..base.ragged import Ragged
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
        return DeviceMapped(self._dataset, device, (*self._functions, checked(function, device)))

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

    def placed(self, device: Any) -> BatchFunction:
        """Return the function for a device, or raise an error if it cannot run there."""
        return self

    def __call__(self, batch: Any, rows: Rows) -> Any:
        raise NotImplementedError


def same_device(one: Any, other: Any) -> bool:
    """Whether both name one device: "cuda:0" and ``torch.device("cuda:0")`` do."""
    return bool(one == other or str(one) == str(other))


# The operations of penstock.image that take on="device".
ON_DEVICE = (
    *("center_crop", "color_jitter", "decode", "erase", "grayscale", "normalize", "pad"),
    *("random_affine", "random_crop", "random_flip", "random_resized_crop", "resize", "rot90"),
    "to_chw",
)


def checked(function: Any, device: Any) -> Function:
    """Return a function for a device, or raise an error if it is not one."""
    if not callable(function):
        raise InvalidArgument(
            f"{function!r} is not a function of a device; native operations run in the workers, "
            'without device=. Of penstock.image these run on a device, with on="device": '
            + ", ".join(ON_DEVICE),
            "map",
        )
    return function.placed(device) if isinstance(function, BatchFunction) else function


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

    def spec(self, spec: Any) -> Any:
        """Return the schema of the results: they run once, on a batch without rows.

        Parameters
        ----------
        spec : nest of TensorSpec
            Of the batches that they get; None: unknown.

        Raises
        ------
        InvalidArgument
            The schema has unknown lengths, or a function fails without rows.
        """
        if not self or spec is None:
            return spec
        empty = mapped(_without_rows, spec)
        try:
            made = self.applied(_there(empty, self.device), Rows(0, 0, 0))
        except Exception as error:
            raise InvalidArgument(
                f"functions of the device fail with a batch without rows ({error}); take the "
                "schema from a batch",
                "element_spec",
            ) from error
        rows = leaves_of(spec)[0].shape[0]

        def with_rows(leaf: Any) -> Any:
            return replace(leaf, shape=(rows, *leaf.shape[1:])) if leaf.shape[:1] == (0,) else leaf

        return mapped(with_rows, spec_of_value(made))

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
            made = _through(lambda leaf: leaf.clone() if _storage(leaf) in own else leaf, made)
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

        def record(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)
            return leaf

        return _through(record, batch)


def worked(place: Place, functions: Functions, rows: Callable[[], Rows]) -> Worked:
    """Return the way to a device of torch's, and through the functions there."""
    from .place import CudaDevice

    cuda = place.name if isinstance(place, CudaDevice) else None
    return Worked(functions, rows, place.send, place.deliver, cuda)


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _without_rows(leaf: TensorSpec) -> Any:
    """Return a leaf of a batch without rows."""
    if leaf.dtype in (bytes, str):
        return Ragged(np.zeros(0, np.uint8), np.zeros(1, np.int64), leaf.dtype.__name__)
    if None in leaf.shape[1:] or not isinstance(leaf.dtype, np.dtype):
        raise InvalidArgument(
            f"{leaf} is not known before there is a batch, and so is not what functions of a "
            "device make of it; take the schema from a batch",
            "element_spec",
        )
    return np.zeros((0, *leaf.shape[1:]), leaf.dtype)


def _there(batch: Any, device: Any) -> Any:
    """Return a batch without rows on a device."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(device, (jax.Device, jax.sharding.Sharding)):
        return mapped(lambda a: jax.device_put(a, device) if _has_numbers(a) else a, batch)
    return mapped(lambda a: tensor_of_leaf(a).to(device) if _has_numbers(a) else a, batch)


def _has_numbers(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"


def _through(function: Callable[[Any], Any], result: Any) -> Any:
    """Apply `function` to the tensors of a result, also to those in dataclasses and mappings."""
    return mapped_through(function, result, lambda kind: False)


def _storage(leaf: Any) -> int | None:
    """Return the address of a tensor's memory; None: it is no tensor of a device."""
    if not getattr(leaf, "is_cuda", False):
        return None
    return int(leaf.untyped_storage().data_ptr())
