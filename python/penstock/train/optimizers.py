"""Optimizers: formulas with hyper-parameters. Their state is in an `Updater`.

The formulas are PyTorch's, in float32. ``g`` is the gradient after scaling, clipping and, except
for AdamW, the addition of ``weight_decay`` times the weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .. import _engine
from .._engine import Schedule
from ..errors import InvalidArgument

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Momentum", "Nesterov", "Optimizer", "RMSProp"]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Base of the optimizers. An immutable value, which several updaters may share.

    Parameters
    ----------
    weight_decay : float
        L2: this times the weight is added to the gradient. `AdamW` decays the weights instead.
    clip_value : float, optional
        Clips each element of the gradient to [-clip_value, clip_value].
    clip_norm : float, optional
        Multiplies the gradient by ``min(1, clip_norm / (norm + 1e-6))``. Not with `clip_value`.

    Raises
    ------
    InvalidArgument
        When made: an invalid hyper-parameter, named in the text.
    """

    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_norm: float | None = None
    _built: _engine.Optimizer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self) is Optimizer:
            raise InvalidArgument("choose a formula, such as train.Adam(1e-3)", "Optimizer")
        try:
            built = self._build()
        except TypeError:
            raise InvalidArgument(
                f"a hyper-parameter is no number: {self!r}", type(self).__name__
            ) from None
        object.__setattr__(self, "_built", built)

    # The engine's object is not pickled but built again.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_built"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_built", self._build())

    def _build(self) -> _engine.Optimizer:
        raise NotImplementedError

    def _common(self) -> _engine.OptimizerCommon:
        value, norm = (
            math.inf if clip is None else clip for clip in (self.clip_value, self.clip_norm)
        )
        return _engine.OptimizerCommon(self.weight_decay, value, norm)


def _schedule(lr: Any) -> Schedule:
    return lr if isinstance(lr, Schedule) else Schedule(lr)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: ``w -= lr * g``."""

    lr: float | Schedule = 0.01

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.sgd(_schedule(self.lr), self._common())


@dataclass(frozen=True)
class Momentum(Optimizer):
    """``v = momentum * v + g; w -= lr * v``. Sutskever et al. 2013, in PyTorch's form."""

    lr: float | Schedule = 0.01
    momentum: float = 0.9

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.momentum(_schedule(self.lr), self.momentum, self._common())


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """``v = momentum * v + g; w -= lr * (g + momentum * v)``. Sutskever et al. 2013."""

    lr: float | Schedule = 0.01
    momentum: float = 0.9

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.nesterov(_schedule(self.lr), self.momentum, self._common())


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """``s += g**2; w -= lr * g / (sqrt(s) + eps)``; s begins at ``initial``. Duchi et al. 2011."""

    lr: float | Schedule = 0.01
    eps: float = 1e-10
    initial: float = 0.0

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.adagrad(_schedule(self.lr), self.eps, self.initial, self._common())


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """``s = alpha * s + (1 - alpha) * g**2; w -= lr * g / (sqrt(s) + eps)``.

    Hinton's lecture 6e. ``centered`` divides by the standard deviation, not the root of s.
    """

    lr: float | Schedule = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    centered: bool = False

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.rmsprop(
            _schedule(self.lr), self.alpha, self.eps, bool(self.centered), self._common()
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """Means m of g and v of g**2, bias-corrected: ``w -= lr * m / (sqrt(v) + eps)``.

    Kingma and Ba 2015.
    """

    lr: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.adam(
            _schedule(self.lr), self.beta1, self.beta2, self.eps, self._common()
        )


@dataclass(frozen=True)
class AdamW(Optimizer):
    """`Adam` with decoupled decay: ``w *= 1 - lr * weight_decay`` first, in place of L2.

    Loshchilov and Hutter 2019.
    """

    lr: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = field(default=0.01, kw_only=True)

    def _build(self) -> _engine.Optimizer:
        return _engine.Optimizer.adamw(
            _schedule(self.lr), self.beta1, self.beta2, self.eps, self._common()
        )
