"""A torch module's parameters and gradients as views of slabs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..errors import InvalidArgument
from .device_slab import DeviceParameters, DeviceSlab
from .parameters import Parameters, Slab

__all__ = ["Aliased", "alias"]


class _Block(NamedTuple):
    """A parameter of the module and the tensor over its block."""

    name: str
    parameter: Any
    view: Any
    address: int


class Aliased(NamedTuple):
    """Result of `alias`: the weights and the gradients of a module."""

    parameters: Parameters
    gradients: Slab


def trained(module: torch.nn.Module, operation: str) -> dict[str, torch.nn.Parameter]:
    """The parameters of a module that require a gradient: float32 on one device."""
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not found:
        raise InvalidArgument("the module has no parameter that requires a gradient", operation)
    device = next(iter(found.values())).device
    for name, parameter in found.items():
        if parameter.dtype != torch.float32 or parameter.device != device:
            raise InvalidArgument(
                f"parameter {name!r} is {parameter.dtype} on {parameter.device}; all must be "
                f"float32 on one device, and the first one is on {device}",
                operation,
            )
    return found


def alias(module: Any, parameters: Parameters | None = None, *, shared: bool = False) -> Aliased:
    """Make a torch module's parameters, and their gradients, views of the engine's memory.

    >>> parameters, gradients = penstock.torch.alias(module)
    >>> updater = penstock.train.Updater(parameters, penstock.train.Adam(1e-3))
    >>> for x, y in loader:
    ...     loss(module(x), y).backward()
    ...     updater.apply(gradients)
    ...     gradients.zero()

    Afterwards nothing is copied: ``backward`` adds to the slab of gradients, and the module sees
    every update at once. Autograd does not notice updates: values saved for a backward pass may
    have changed by then.

    Parameters
    ----------
    module : torch.nn.Module
        With float32 parameters on the CPU, or on one other device. Parameters that require no
        gradient, and buffers, are not changed.
    parameters : Parameters, optional
        Existing weights, such as those of an equal module or of a file: the module becomes another
        view of them, and its values are lost. Default: new parameters with the module's values.
    shared : bool
        Whether new slabs can be shared with other processes.

    Returns
    -------
    parameters : penstock.train.Parameters
        Blocks have the names of ``module.named_parameters()``. Of a module on a device they are
        tensors there, and so are the gradients and an updater's state: the host has a copy only
        for `save`, `state` and `penstock.train.publish`.
    gradients : penstock.train.Slab
        This module's own. ``module.zero_grad()`` works, too: gradients that torch stored elsewhere
        are copied when they are applied, and counted in ``copied_bytes``. A parameter without a
        gradient has zeroes.

    Raises
    ------
    InvalidArgument
        A parameter that is not float32; parameters on several devices; no parameter; `parameters`
        with other blocks or on another device; `shared` for a module on a device. Nothing was
        changed. From `Updater.apply`: a parameter of the module is no view any more, as after
        ``module.to`` or ``module.half``; alias the module again.
    """
    found = trained(module, "alias")
    device = next(iter(found.values())).device
    if parameters is None:
        parameters = _parameters_of(found, device, bool(shared))
    else:
        _check_blocks(parameters, found, device)
    made: _Weights
    gradients: _Gradients
    if isinstance(parameters, DeviceParameters):
        made = _DeviceWeights.over(parameters)
        gradients = _DeviceGradients.over(parameters.gradients(shared=bool(shared)))
    else:
        made = _Weights.__new__(_Weights)
        Slab.__init__(made, parameters._slab)
        gradients = _Gradients(parameters._slab.like(bool(shared)))
    made._blocks = _blocks(made, found)
    gradients._blocks = _blocks(gradients, found)
    gradients._weights = made
    for block in made._blocks:
        # Not through detach(), whose result shares a version counter: two modules on the same
        # weights would make each other's backward passes fail.
        block.parameter.data = block.view
    gradients._settle()
    return Aliased(made, gradients)


def _parameters_of(found: dict[str, Any], device: Any, shared: bool) -> Parameters:
    shapes = {name: tuple(parameter.shape) for name, parameter in found.items()}
    if device.type == "cpu":
        made = Parameters(shapes, shared=shared)
    elif shared:
        raise InvalidArgument(
            f"the module is on {device}, whose memory cannot be shared; omit shared=True, or move "
            "the module to the CPU",
            "alias",
        )
    else:
        made = DeviceParameters(shapes, device)
    made.update(found)
    return made


def _check_blocks(parameters: Parameters, found: dict[str, Any], device: Any) -> None:
    where = torch.device("cpu") if parameters.device is None else parameters.device
    if where != device:
        raise InvalidArgument(
            f"the parameters are on {where}, and the module is on {device}: move the module",
            "alias",
        )
    mine = {name: tuple(array.shape) for name, array in parameters.items()}
    theirs = {name: tuple(parameter.shape) for name, parameter in found.items()}
    for name in mine.keys() | theirs.keys():
        if mine.get(name) != theirs.get(name):
            raise InvalidArgument(
                f"block {name!r} is {mine.get(name, 'not there')} in the parameters and "
                f"{theirs.get(name, 'not there')} in the module",
                "alias",
            )


def _blocks(slab: Slab, found: dict[str, Any]) -> list[_Block]:
    blocks = []
    for name, parameter in found.items():
        view: Any = slab[name] if slab.device is not None else torch.from_numpy(slab[name])
        blocks.append(_Block(name, parameter, view, view.data_ptr()))
    return blocks


class _Weights(Parameters):
    """Parameters with a module whose parameters are views of them."""

    _blocks: list[_Block]

    def _settle(self) -> None:
        for name, parameter, _, address in self._blocks:
            if parameter.data_ptr() != address:
                raise InvalidArgument(
                    f"parameter {name!r} of the module is no longer a view of these weights "
                    "(module.to, module.half?): alias the module again",
                    "train",
                )


class _Gradients(Slab):
    """Gradients to which a module's backward passes add."""

    _blocks: list[_Block]
    _weights: _Weights  # of this module; an updater may have another module's

    def _settle(self) -> None:
        """Copy in gradients that torch stored elsewhere, and make the slab their place again."""
        self._weights._settle()
        for _, parameter, view, address in self._blocks:
            gradient = parameter.grad
            if gradient is not None and gradient.data_ptr() == address:
                continue
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
                self._copied += view.nbytes
            parameter.grad = view

    def zero(self) -> None:
        super().zero()
        for _, parameter, view, _ in self._blocks:
            parameter.grad = view


class _DeviceWeights(_Weights, DeviceParameters):
    """Parameters on a device, with a module whose parameters are views of them."""


class _DeviceGradients(_Gradients, DeviceSlab):
    """Gradients on a device."""
