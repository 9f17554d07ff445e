"""An optimizer's state for certain parameters, and applying gradients with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from .. import _engine
from ..base.arguments import path as path_of
from ..base.conventions import Restorable, shown
from ..errors import InvalidArgument
from .optimizers import Optimizer
from .parameters import Parameters, Slab, check_all, copy_all, member
from .values import numbers

__all__ = ["Updater"]

Policy = Literal["raise", "skip", "count"]
_POLICIES = ("raise", "skip", "count")


class Updater(Restorable):
    """Applies gradients to parameters; holds the optimizer's state for them.

    Parameters
    ----------
    parameters : Parameters
    optimizer : Optimizer
        Such as ``train.Adam(1e-3)``.
    non_finite : {"raise", "skip", "count"}
        What becomes of a gradient with a NaN or an infinity in it. raise: `InvalidArgument` names
        the block and the element, and nothing was changed. skip: nothing is changed, `skipped`
        counts it. count: it is applied, `non_finite` counts it.
    shared : bool
        Whether the optimizer's state lives in memory that processes can share.

    Raises
    ------
    InvalidArgument, OutOfMemory

    Notes
    -----
    The same gradients in the same order give the same bits. Any thread may apply; updates are
    applied one after the other, with the GIL released.
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
        self._engine = _engine.Updater(
            parameters._slab, optimizer._built, _POLICIES.index(non_finite), bool(shared)
        )
        self._slabs = tuple(Slab(slab) for slab in self._engine.state)
        self._copies: Slab | None = None

    def __repr__(self) -> str:
        return shown(self, self._optimizer, blocks=len(self._parameters), step=self.step)

    def apply(self, gradients: Slab | Mapping[str, Any], scale: float = 1.0) -> bool:
        """Apply one update from ``gradients * scale``.

        Parameters
        ----------
        gradients : Slab, or dict from every block's name to an array
            A slab (`Parameters.gradients`) is used as it is. Arrays are copied first, from one
            thread at a time.
        scale : float
            Such as 1 / n where n gradients were added up.

        Returns
        -------
        bool
            False if the gradient was not finite and was skipped.

        Raises
        ------
        InvalidArgument
            Another layout (it says which block differs), or a gradient that is not finite. Nothing
            was changed.
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
        return self._engine.apply(gradients._slab, scale)

    def apply_rows(self, block: str, rows: Any, values: Any, scale: float = 1.0) -> bool:
        """Apply one update to some rows (axis 0) of one block, and to nothing else.

        The optimizer's state of other rows does not move on either, and they do not decay. It
        counts as an update like any other, also for Adam's correction of the bias.

        Parameters
        ----------
        block : str
        rows : array of integers, shape (n,)
            In any order. Rows that come twice are added up first.
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
            Rows or shapes that cannot be, a gradient that is not finite, no such block. Nothing was
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
        return self._engine.apply_rows(
            block,
            np.ascontiguousarray(which, np.int64),
            np.ascontiguousarray(given, np.float32),
            scale,
        )

    @property
    def parameters(self) -> Parameters:
        """The weights that it changes."""
        return self._parameters

    @property
    def optimizer(self) -> Optimizer:
        """The rule, with its numbers, by which it changes them."""
        return self._optimizer

    @property
    def slabs(self) -> tuple[Slab, ...]:
        """The optimizer's state, views like the parameters: m and v of Adam, none of SGD."""
        return self._slabs

    @property
    def step(self) -> int:
        """How many updates were applied with this state."""
        return self._engine.step

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self._engine.lr

    @property
    def norm(self) -> float:
        """The Euclidean norm of the last gradient that was applied: scaled, not clipped."""
        return self._engine.norm

    @property
    def skipped(self) -> int:
        """Gradients that were not finite and were not applied."""
        return self._engine.skipped

    @property
    def non_finite(self) -> int:
        """Gradients that were not finite."""
        return self._engine.non_finite

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, version, step and the optimizer's state to a safetensors file.

        It appears, or replaces the one that was there, when all of it is on the disk; no update is
        applied meanwhile. The state's arrays are named ``optimizer/<slab>/<block>``.

        Raises
        ------
        InvalidArgument, System
            A torch module whose weights these were has left them; it could not be written.
        """
        self._parameters._settle()
        _engine.save_updater(self._engine, path_of(path, "save"))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`, bit for bit.

        Raises
        ------
        InvalidArgument
            The state of another formula, or other blocks: the first that differs is named. Nothing
            was changed.
        DataLoss, NotFound, System
            A damaged file, none, or one that could not be read; only in the last case some blocks
            may have been.
        """
        _engine.load_updater(self._engine, path_of(path, "load"))

    def state(self) -> dict[str, Any]:
        """Copies of all there is: parameters, version, step and the optimizer's slabs.

        Not while another thread applies.
        """
        return {
            "optimizer": type(self._optimizer).__name__,
            "step": self.step,
            "parameters": self._parameters.state(),
            "slabs": [{name: array.copy() for name, array in slab.items()} for slab in self._slabs],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state` of an updater with the same blocks and formula.

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


def _wrong(name: str, value: Any, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is a {type(value).__name__}; give {wanted}", "Updater")
