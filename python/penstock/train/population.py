"""Population: many small models of one architecture, each with its own hyper-parameters."""

from __future__ import annotations

import math
import os
import random
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np

from ..base.arguments import flag, integer, one_of, real
from ..base.conventions import Closing, shown
from ..errors import Closed, InvalidArgument, OutOfMemory
from .member_rows import MemberState, copied
from .optimizers import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, Optimizer, RMSProp
from .population_run import STRATEGIES, MemberResult, PopulationRun
from .population_strategies import Architecture, Concurrent, Stacked, Strategy

__all__ = ["MemberResult", "MemberState", "Population", "PopulationRun"]

_FORMULAS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
}


class Population(Closing):
    """Train many small models of one architecture in one process.

    All weights, gradients and optimizer states are in one piece of memory, one row for each member.
    Each member has its own hyper-parameters, its own step count and, if wanted, its own data.

    Parameters
    ----------
    model : callable, torch.nn.Module, or pair of functions
        For torch, a function or class without arguments that makes a module: each member's initial
        weights come from a call of it with torch's generator at the member's seed. A module: all
        members begin with its weights. float32.
        For JAX, a pair ``(init, apply)``: ``init(key)``, called with ``jax.random.key`` of the
        member's seed, returns a tree of arrays of float32, and ``apply(weights, inputs)`` the
        outputs. Of a Flax module: ``(lambda key: net.init(key, x), net.apply)``.
    members : int
    hyper : dict
        The optimizer's hyper-parameters by name ("lr", "weight_decay", "momentum", ...), and
        "seed": a list with a value for each member, or one value for all. Default of "seed": `seed`
        + the member's number.
    optimizer : {"sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw"}
        Its formula is that of `train.SGD` and so on.
    loss : callable, optional
        ``loss(outputs, targets) -> scalar``, of the model's framework. Default: the mean softmax
        cross-entropy of integer labels.
    seed : int
        Also decides `perturb`.
    strategy : {"stacked", "concurrent"}, optional
        How gradients are computed. stacked: one call for all members, by `torch.func.vmap` (for a
        module without buffers) or `jax.vmap`. concurrent: `threads` threads compute a member's step
        each. None: both are measured in the first steps of a run, and the faster one goes on.
        Results are equal within rounding, but for layers that draw random numbers.
    threads : int, optional
        For "concurrent". Default: the usable cores.
    compile : bool
        Whether the call of "stacked" is compiled by `torch.compile`, which takes some seconds and
        needs a C++ compiler. Only for torch with strategy="stacked"; calls of JAX are always
        compiled, once for each shape of a batch.
    resident : int, optional
        Members that train at once. The others wait in a copy, and take the place of one that has
        finished. Default: all.
    device : str or torch.device, optional
        For torch: where the members are and train. Default: where the model's weights are. On a
        CUDA device all members share one context; "concurrent" has a stream for each thread, and
        waiting members are in pinned memory of the host.

    Raises
    ------
    InvalidArgument
        A wrong option, or a wrong model.
    OutOfMemory
        The text says how many members fit.

    Notes
    -----
    Threads: one at a time. Training goes on only while the caller waits for a result, so between
    two results every method may be called.
    """

    def __init__(
        self,
        model: Any,
        *,
        members: int,
        hyper: Mapping[str, Any] | None = None,
        optimizer: str = "adam",
        loss: Callable[[Any, Any], Any] | None = None,
        seed: int = 0,
        strategy: Literal["stacked", "concurrent"] | None = None,
        threads: int | None = None,
        compile: bool = False,
        resident: int | None = None,
        device: Any = None,
    ) -> None:
        self._count = integer("members", members, 1, operation="Population")
        if resident is None:
            resident = self._count
        resident = integer("resident", resident, 1, operation="Population")
        one_of("optimizer", optimizer, tuple(_FORMULAS), "Population")
        self._formula = _FORMULAS[optimizer]
        if strategy is not None:
            one_of("strategy", strategy, STRATEGIES, "Population")
        self.strategy: str | None = strategy
        cores = len(os.sched_getaffinity(0))
        self._threads = integer("threads", threads or cores, 1, operation="Population")
        if flag("compile", compile, "Population") and strategy != "stacked":
            raise InvalidArgument("compile=True is for strategy='stacked'", "Population")
        self._random = random.Random(integer("seed", seed, 0, operation="Population"))
        self._hyper = _hyper_of(hyper or {}, self._count, seed, self._formula)
        self._optimizers = [self._optimizer_of(hyper) for hyper in self._hyper]
        self._architecture = _architecture_of(model, self._hyper[0]["seed"], loss, compile, device)
        shapes = self._architecture.shapes
        built = self._optimizers[0]._built
        count = min(resident, self._count)
        try:
            self._rows = self._architecture.make_rows(count, built.state_slabs)
        except OutOfMemory as error:
            floats = sum(math.prod(shape) for shape in shapes.values()) * (2 + built.state_slabs)
            available = self._architecture.available_bytes()
            raise OutOfMemory(_how_many_fit(count, 4 * floats, available), "Population") from error
        self._waiting: dict[int, MemberState] = {}  # members without a row
        self._row_of: dict[int, int] = {}
        self._strategies: dict[str, Strategy] = {}
        self._run: weakref.ref[PopulationRun] | None = None  # collected: the run has ended
        self._closed = False
        for number in range(self._count):
            self._waiting[number] = self._initial(number)
            if number < count:
                self._enter(number, number)

    # ---- members ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return shown(self, self._architecture.name, members=self._count, strategy=self.strategy)

    def hyper(self, member: int) -> dict[str, Any]:
        """The hyper-parameters of a member, with its seed."""
        return dict(self._hyper[self._number(member)])

    def step(self, member: int) -> int:
        """Updates of a member, in all runs."""
        number = self._number(member)
        waits = self._waiting.get(number)
        return self._rows.step(self._row_of[number]) if waits is None else waits.step

    def module(self, member: int) -> Any:
        """The member's model, with its weights.

        For torch, a module. A view of the weights while the member has a row (always, without
        `resident`); it may belong to another member after the next step of a run. Otherwise a copy.
        Its modes are its own: ``eval()`` on it does not change how the member trains.
        For JAX, the weights: the tree that `init` returns, of JAX arrays that are copies.
        """
        number = self._number(member)
        if number in self._row_of:
            return self._architecture.module(self._row_of[number])
        state = self._waiting[number]
        return self._architecture.copy_of(self._rows.views(state.floats), state.buffers)

    def take(self, member: int) -> MemberState:
        """Copy a member out: weights and optimizer state as one array."""
        number = self._number(member)
        if number in self._waiting:
            waits = self._waiting[number]
            floats = self._rows.host_copy(waits.floats)
            return MemberState(floats, waits.step, dict(waits.hyper), copied(waits.buffers))
        row = self._row_of[number]
        buffers = self._architecture.buffers(row)
        return MemberState(self._rows.take(row), self._rows.step(row), self.hyper(number), buffers)

    def put(self, member: int, state: MemberState, hyper: Mapping[str, Any] | None = None) -> None:
        """Replace a member by a state of `take`, from this population or an equal one.

        Parameters
        ----------
        member : int
        state : MemberState
        hyper : dict, optional
            Replaces hyper-parameters of the state by name.

        Raises
        ------
        InvalidArgument
            Another number of floats, or a wrong hyper-parameter. Nothing was changed.
        """
        number = self._number(member)
        if not isinstance(state, MemberState):
            raise InvalidArgument(
                f"the state is a {type(state).__name__}; give what take() returned", "put"
            )
        values = {**self.hyper(number), **state.hyper, **(hyper or {})}
        _check_names(values, self._formula, "put")
        integer("the seed", values["seed"], 0, operation="put")
        step = integer("the step", state.step, 0, operation="put")
        optimizer = self._optimizer_of(values)
        floats = np.ascontiguousarray(state.floats, np.float32)
        if floats.shape != (self._rows.size,):
            raise InvalidArgument(
                f"this state has {floats.size} floats; a member of this population has "
                f"{self._rows.size}",
                "put",
            )
        self._hyper[number], self._optimizers[number] = values, optimizer
        own = self._rows.host_copy(floats)
        waits = MemberState(own, step, dict(values), copied(state.buffers))
        self._waiting[number] = waits
        if number in self._row_of:
            self._enter(number, self._row_of[number])

    def copy(self, source: int, to: int) -> None:
        """Make member `to` equal to `source`: weights, optimizer state, step, hyper-parameters.

        It keeps its seed. The exploit step of population based training (Jaderberg et al. 2017).
        """
        state = self.take(source)
        self.put(to, state, {"seed": self._hyper[self._number(to)]["seed"]})

    def perturb(self, member: int, **factors: float | Sequence[float]) -> dict[str, Any]:
        """Multiply hyper-parameters: ``perturb(3, lr=(0.8, 1.25))``. Returns the new ones.

        A sequence of factors: one of them is chosen at random, by the population's seed. The
        explore step of population based training (Jaderberg et al. 2017).

        Raises
        ------
        InvalidArgument
            No such hyper-parameter, or a value that the optimizer refuses. Nothing was changed.
        """
        number = self._number(member)
        values = self.hyper(number)
        for name, factor in factors.items():
            if name not in values or name == "seed":
                raise InvalidArgument(
                    f"{name!r} is no hyper-parameter of this population; there are "
                    f"{', '.join(n for n in values if n != 'seed')}",
                    "perturb",
                )
            factors_of = list(factor) if isinstance(factor, Sequence) else [factor]
            if not factors_of:
                raise InvalidArgument(f"{name!r} has no factors", "perturb")
            chosen = real(f"the factor of {name}", self._random.choice(factors_of), "perturb")
            values[name] = real(name, values[name], "perturb") * chosen
        self._set_hyper(number, values)
        return self.hyper(number)

    # ---- training --------------------------------------------------------------------------------

    def train(
        self,
        data: Iterable[Any] | Callable[[int, int], Iterable[Any]],
        *,
        steps: int | Sequence[int],
        members: Iterable[int] | None = None,
    ) -> PopulationRun:
        """Train for a number of steps; results are yielded by the run's `as_completed`.

        Parameters
        ----------
        data : iterable, or callable
            An iterable of ``(inputs, targets)``, such as a `Loader`, a `Dataset` or a list: each
            batch is taken once and shared by all members that train. A function
            ``data(member, seed)`` that returns such an iterable: each member has its own.
            An iterable that has ended is begun again.
        steps : int or list
            Of all members, or of each.
        members : iterable of int, optional
            The members to train. Default: all.
        """
        self._check_open()
        if self._run is not None and self._run() is not None:
            raise InvalidArgument(
                "a run of this population has not ended: take all of its results, or close it",
                "train",
            )
        chosen = range(self._count) if members is None else [self._number(m) for m in members]
        each = isinstance(steps, (Sequence, np.ndarray))
        counts: list[Any] = list(steps) if each else [steps] * self._count  # type: ignore[arg-type]
        if len(counts) != self._count:
            raise InvalidArgument(
                f"steps has {len(counts)} numbers for {self._count} members", "train"
            )
        run = self._run_of(data)
        for number in chosen:
            run.add(number, counts[number])
        self._run = weakref.ref(run)
        return run

    def close(self) -> None:
        """End a run and the threads. The weights stay readable."""
        run = None if self._run is None else self._run()
        if run is not None:
            run.close()
        self._closed = True
        for strategy in self._strategies.values():
            strategy.close()
        self._strategies.clear()

    # ---- inside ----------------------------------------------------------------------------------

    def _run_of(self, data: Any) -> PopulationRun:
        return PopulationRun(self, data)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the population was closed", "Population")

    def _number(self, member: int) -> int:
        return integer("member", member, 0, self._count - 1, operation="Population")

    def _optimizer_of(self, hyper: Mapping[str, Any]) -> Optimizer:
        given = {name: value for name, value in hyper.items() if name != "seed"}
        return self._formula(**given)

    def _set_hyper(self, number: int, values: dict[str, Any]) -> None:
        optimizer = self._optimizer_of(values)
        self._hyper[number], self._optimizers[number] = values, optimizer
        if number in self._row_of:
            self._rows.use(self._row_of[number], optimizer)
        else:
            self._waiting[number].hyper = dict(values)

    def _initial(self, number: int) -> MemberState:
        seed = self._hyper[number]["seed"]
        weights, buffers = self._architecture.initial(seed)
        shapes, found = self._rows.shapes, {name: a.shape for name, a in weights.items()}
        for name in {**shapes, **found}:
            if shapes.get(name) != found.get(name):
                raise InvalidArgument(
                    f"with seed {seed} the model's {name!r} is {found.get(name)}, and "
                    f"{shapes.get(name)} in member 0; all members need the same shapes",
                    "Population",
                )
        floats = self._rows.beginning(weights, self._optimizers[number]._built.initial_state)
        return MemberState(floats, 0, self.hyper(number), dict(buffers))

    def _enter(self, number: int, row: int) -> None:
        """Move a member that waits into a row."""
        state = self._waiting.pop(number)
        self._row_of[number] = row
        self._rows.load(row, state.floats, self._optimizers[number], state.step)
        self._architecture.set_buffers(row, state.buffers)

    def _bring(self, number: int, instead: int) -> None:
        """Give a waiting member the row of another, which waits from now on."""
        self._waiting[instead] = self.take(instead)
        self._enter(number, self._row_of.pop(instead))

    def _strategy(self, name: str) -> Strategy:
        if name not in self._strategies:
            self._strategies[name] = (
                Stacked(self._architecture)
                if name == "stacked"
                else Concurrent(self._architecture, self._threads)
            )
        return self._strategies[name]


def _architecture_of(
    model: Any, seed: int, loss: Callable[[Any, Any], Any] | None, compiled: bool, device: Any
) -> Architecture:
    if isinstance(model, (tuple, list)):
        from .population_jax import JaxFunctions

        return JaxFunctions(model, seed, loss, compiled, device)
    from .population_torch import TorchModules

    return TorchModules(model, seed, loss, compiled, device)


def _hyper_of(
    hyper: Mapping[str, Any], count: int, seed: int, formula: type[Optimizer]
) -> list[dict[str, Any]]:
    """The hyper-parameters of each member."""
    _check_names(hyper, formula, "Population")
    columns: dict[str, list[Any]] = {}
    for name, given in hyper.items():
        value = given.tolist() if hasattr(given, "tolist") else given  # an array of any framework
        if isinstance(value, Sequence):
            if len(value) != count:
                raise InvalidArgument(
                    f"hyper[{name!r}] has {len(value)} values for {count} members", "Population"
                )
            columns[name] = [v.tolist() if hasattr(v, "tolist") else v for v in value]
        else:
            columns[name] = [value] * count
    columns.setdefault("seed", [seed + number for number in range(count)])
    for number, own in enumerate(columns["seed"]):
        integer(f"the seed of member {number}", own, 0, operation="Population")
    return [{name: values[n] for name, values in columns.items()} for n in range(count)]


def _check_names(hyper: Mapping[str, Any], formula: type[Optimizer], operation: str) -> None:
    names = {f.name for f in fields(formula) if f.init} | {"seed"}
    for name in hyper:
        if name not in names:
            raise InvalidArgument(
                f"{formula.__name__} has no hyper-parameter {name!r}; there are "
                f"{', '.join(sorted(names))}",
                operation,
            )


def _how_many_fit(wanted: int, each: int, available: int) -> str:
    return (
        f"{wanted} members of {each / 1e6:.1f} MB each do not fit in memory; about "
        f"{available // each} do. Give resident={max(1, available // each)}, and the others wait"
    )
