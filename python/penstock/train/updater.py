"""Updater: an optimizer with its state for certain parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _engine
from ..base.arguments import path as path_of
from ..base.conventions import Restorable, shown
from ..errors import InvalidArgument
from .optimizers import Optimizer
from .parameters import (
    _POLICIES,
    Parameters,
    Policy,
    Slab,
    check_all,
    copy_all,
    member,
    numbers,
)

__all__ = ["Updater"]


class Updater(Restorable):
    """Apply gradients to parameters, with the optimizer's state for them.

    Parameters
    ----------
    parameters : Parameters
        On a device, the optimizer's state is there too. Updates are then enqueued on the stream
        that is current, and each waits on the device for the one before.
    optimizer : Optimizer
        Such as ``train.Adam(1e-3)``.
    non_finite : {"raise", "skip", "count"}
        What to do with a gradient that has a NaN or an infinity. raise: `InvalidArgument` that
        names block and element; nothing is changed. skip: nothing is changed, counted in `skipped`.
        count: it is applied, counted in `non_finite`; on a device nothing then waits for it.
    shared : bool
        Whether the memory of the optimizer's state can be shared with other processes.

    Raises
    ------
    InvalidArgument, OutOfMemory

    Notes
    -----
    The same gradients in the same order give the same bits. Threads: any; updates are applied one
    after the other, with the GIL released.
    """

    def __init__(
        self,
        parameters: Parameters,
        optimizer: Optimizer,
        *,
        non_finite: Policy = "raise",
        shared: bool = False,
    ) -> None:
        if not isinstance(parameters, Parameters):
            raise _wrong("parameters", parameters, "train.Parameters")
        if not isinstance(optimizer, Optimizer):
            raise _wrong("optimizer", optimizer, "one such as train.Adam(1e-3)")
        if non_finite not in _POLICIES:
            raise InvalidArgument(
                f"non_finite is {non_finite!r}; there are {', '.join(_POLICIES)}", "Updater"
            )
        self._parameters = parameters
        self._optimizer = optimizer
        self._policy: Policy = non_finite
        self._engine, slabs = parameters._updater(optimizer, non_finite, bool(shared))
        self._slabs = tuple(slabs)
        self._copies: Slab | None = None

    def __repr__(self) -> str:
        return shown(self, self._optimizer, blocks=len(self._parameters), step=self.step)

    def apply(self, gradients: Slab | Mapping[str, Any], scale: float = 1.0) -> bool:
        """Apply one update from ``gradients * scale``.

        Parameters
        ----------
        gradients : Slab, or dict from every block's name to an array
            A slab (`Parameters.gradients`) is used without a copy. Arrays are copied first; give
            them from one thread at a time.
        scale : float
            For example 1 / n for a sum of n gradients.

        Returns
        -------
        bool
            False if the gradient was not finite and was skipped.

        Raises
        ------
        InvalidArgument
            Another layout (the text names the first block that differs), or a gradient that is not
            finite. Nothing was changed.
        """
        if not isinstance(gradients, Slab):
            if not isinstance(gradients, Mapping):
                raise _wrong("gradients", gradients, "a slab of gradients or a dict of arrays")
            if self._copies is None:
                self._copies = self._parameters.gradients()
            copy_all(self._copies, gradients, "apply")
            gradients = self._copies
        self._parameters._settle()
        gradients._settle()
        if gradients.device != self._parameters.device:
            raise InvalidArgument(
                f"the gradients are {_place_of(gradients)} and the parameters "
                f"{_place_of(self._parameters)}; take them from parameters.gradients() or alias",
                "apply",
            )
        given = gradients._slab if gradients.device is None else gradients
        applied: bool = self._engine.apply(given, scale)
        return applied

    def apply_rows(self, block: str, rows: Any, values: Any, scale: float = 1.0) -> bool:
        """Apply one update to some rows (axis 0) of one block, and to nothing else.

        Other rows, including their optimizer state, are left untouched and do not decay. It counts
        as one update, also for Adam's bias correction.

        Parameters
        ----------
        block : str
        rows : array of integers, shape (n,)
            In any order. Repeated rows are added up first.
        values : array, shape (n, ...)
            The gradient of each of these rows.
        scale : float

        Returns
        -------
        bool
            As `apply`.

        Raises
        ------
        InvalidArgument, NotFound
            Invalid rows or shapes, a gradient that is not finite, no such block. Nothing was
            changed.
        """
        shape = self._parameters[block].shape
        which = np.asarray(rows)
        if which.ndim != 1 or (which.dtype.kind not in "iu" and which.size > 0):
            raise InvalidArgument(
                f"rows of block {block!r} are {which.dtype} of shape {which.shape}; "
                "give a list of integers",
                "apply_rows",
            )
        given = numbers(block, values, "apply_rows")
        self._parameters._settle()
        if shape and given.shape != (len(which), *shape[1:]):
            raise InvalidArgument(
                f"block {block!r}: {len(which)} rows need values of shape "
                f"{(len(which), *shape[1:])}; these are {given.shape}",
                "apply_rows",
            )
        applied: bool = self._engine.apply_rows(
            block,
            np.ascontiguousarray(which, np.int64),
            np.ascontiguousarray(given, np.float32),
            scale,
        )
        return applied

    @property
    def parameters(self) -> Parameters:
        """The updated weights."""
        return self._parameters

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def slabs(self) -> tuple[Slab, ...]:
        """The optimizer's state as slabs of the same blocks: m and v for Adam, none for SGD."""
        return self._slabs

    @property
    def step(self) -> int:
        """The number of updates applied with this state."""
        return int(self._engine.step)

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return float(self._engine.lr)

    @property
    def norm(self) -> float:
        """The Euclidean norm of the last applied gradient: scaled, not clipped."""
        return float(self._engine.norm)

    @property
    def skipped(self) -> int:
        """Gradients that were not finite and were not applied."""
        return int(self._engine.skipped)

    @property
    def non_finite(self) -> int:
        """Gradients that were not finite."""
        return int(self._engine.non_finite)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, version, step and the optimizer's state to a safetensors file.

        The file appears, or replaces an existing one, when all of it is on the disk; no update is
        applied meanwhile. The state's arrays are named ``optimizer/<slab>/<block>``.

        Raises
        ------
        InvalidArgument, System
            A torch module is no longer a view of these weights; the file could not be written.
        """
        self._parameters._settle()
        host = self if self._parameters.device is None else self._copy_on_host()
        _engine.save_updater(host._engine, path_of(path, "save"))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of `save`, bit for bit.

        Raises
        ------
        InvalidArgument
            The state of another formula, or other blocks (the text names the first that differs).
            Nothing was changed.
        DataLoss, NotFound, System
            A damaged file, no such file, or a failed read. Only after a failed read some blocks may
            have been changed.
        """
        if self._parameters.device is None:
            _engine.load_updater(self._engine, path_of(path, "load"))
            return
        host = self._copy_on_host()
        host.load(path)
        self.restore(host.state())

    def _copy_on_host(self) -> Updater:
        made = Updater(Parameters(self._parameters._on_host()), self._optimizer)
        made.restore(self.state())
        return made

    def state(self) -> dict[str, Any]:
        """Return copies of parameters, version, step and the optimizer's slabs.

        REQUIRED: no other thread applies meanwhile.
        """
        return {
            "optimizer": type(self._optimizer).__name__,
            "step": self.step,
            "parameters": self._parameters.state(),
            "slabs": [slab._on_host() for slab in self._slabs],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of an updater with the same blocks and formula.

        Raises
        ------
        InvalidArgument
            Another formula or layout; nothing was changed.
        """
        mine = type(self._optimizer).__name__
        formula, step = member(state, "optimizer"), member(state, "step")
        slabs, weights = member(state, "slabs"), member(state, "parameters")
        if formula != mine or len(slabs) != len(self._slabs):
            raise InvalidArgument(
                f"this is a state of {formula} with {len(slabs)} slabs; "
                f"this updater has {mine} with {len(self._slabs)}",
                "restore",
            )
        for slab, blocks in zip(self._slabs, slabs, strict=True):
            check_all(slab, blocks, "restore")
        self._parameters.restore(weights)
        for slab, blocks in zip(self._slabs, slabs, strict=True):
            copy_all(slab, blocks, "restore")
        self._engine.step = step


def _place_of(slab: Slab) -> str:
    return "in the memory of the host" if slab.device is None else f"on {slab.device}"


def _wrong(name: str, value: Any, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is a {type(value).__name__}; give {wanted}", "Updater")
