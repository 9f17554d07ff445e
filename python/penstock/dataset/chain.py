"""The calls that made a Dataset, and the plan that the engine built from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import _engine
from ..base import remote_settings
from ..base.fork_lock import ForkLock
from ..errors import InvalidArgument
from .passes import Passes
from .recipe import Operation

if TYPE_CHECKING:
    from .dataset import Dataset


# Stages whose functions may draw random numbers, by prefixes of their names.
_NUMBERED = ("map_", "filter_", "take_while_", "scan_", "flat_map_", "unique_", "interleave_")


class Chain:
    """The base of `Dataset`: a call of the engine on the input Datasets.

    Immutable except for its passes. Threads: any. It is pickled as the calls that made it.
    """

    def __init__(self) -> None:
        raise TypeError("begin a Dataset with a source: penstock.Dataset.range(...), ...")

    _recipe: tuple[str, tuple[Any, ...]]
    _inputs: tuple[Dataset, ...]
    _several: bool
    _native: Any
    _held: Any  # owns the function that the stage calls; None: no function
    _lock: ForkLock
    _plans: dict[bool, Any]  # built plans, by whether their feeds skip failures
    _spec: Any  # the schema, after the first request
    _passes: Passes

    @classmethod
    def _make(
        cls,
        method: str,
        arguments: tuple[Any, ...],
        inputs: tuple[Dataset, ...] = (),
        like: Chain | None = None,  # its engine objects are shared
        several: bool = False,  # the call takes a list of inputs, even of one
    ) -> Dataset:
        self: Any = object.__new__(cls)
        self._recipe = (method, arguments)
        self._inputs = inputs
        self._several = several
        self._lock = ForkLock()
        self._plans = {}
        self._spec = None
        self._passes = Passes()
        if like is not None:
            self._native, self._held = like._native, like._held
            return self  # type: ignore[no-any-return]
        given = [a._native if isinstance(a, Operation) else a for a in arguments]
        self._held = None
        if method.endswith("_python"):
            self._held = given[0] = _engine.UserObjectOwner(arguments[0])
        if not inputs:
            self._native = getattr(_engine.Dataset, method)(*given)
        elif len(inputs) == 1 and not several:
            self._native = getattr(inputs[0]._native, method)(*given)
        else:
            self._native = getattr(_engine.Dataset, method)([i._native for i in inputs], *given)
        return self  # type: ignore[no-any-return]

    def _then(self, method: str, *arguments: Any) -> Dataset:
        return self._make(method, arguments, datasets(method, (self,)))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_again, (self._stages(), remote_settings.settings())

    # A chain may have more stages than Python's recursion limit: walk it in loops.

    def _stages(self) -> list[tuple[Any, ...]]:
        """Return the calls that made this, each after its inputs' calls, with their numbers."""
        stages: list[tuple[Any, ...]] = []
        numbers: dict[int, int] = {}
        left: list[Chain] = [self]
        while left:
            chain = left[-1]
            missing = [i for i in chain._inputs if id(i) not in numbers]
            if missing:
                left += missing
                continue
            left.pop()
            if id(chain) in numbers:
                continue
            numbers[id(chain)] = len(stages)
            inputs = [numbers[id(i)] for i in chain._inputs]
            stages.append((*chain._recipe, inputs, chain._several))
        return stages

    @classmethod
    def _made_again(
        cls, stages: list[tuple[Any, ...]], fetching: remote_settings.Settings | None = None
    ) -> Dataset:
        remote_settings.use(fetching)
        made: list[Dataset] = []
        for method, arguments, inputs, several in stages:
            of = tuple(made[number] for number in inputs)
            made.append(cls._make(method, arguments, of, several=several))
        return made[-1]

    def _ranks(self) -> list[int]:
        """The ranks of the stages `shard`, in the order of the calls."""
        return [arguments[0] for method, arguments, *_ in self._stages() if method == "shard"]

    def _with_ranks(self, ranks: list[int]) -> Dataset:
        """The same chain with other ranks in its stages `shard`."""
        left = iter(ranks)
        return self._made_again(
            [
                (method, (next(left), *given[1:]) if method == "shard" else given, *inputs)
                for method, given, *inputs in self._stages()
            ]
        )

    def __repr__(self) -> str:
        return " > ".join(self._titles())

    def _chains(self) -> Iterator[Chain]:
        """This chain and all that it reads, from the last stage to the first."""
        left: list[Chain] = [self]
        while left:
            chain = left.pop()
            yield chain
            left += chain._inputs

    def _titles(self) -> list[str]:
        return [str(chain._native.title()) for chain in self._chains()][::-1]

    def _pin(self) -> None:
        """Let the engine own the functions of this chain as long as it may call them."""
        for chain in self._chains():
            if chain._held is not None:
                chain._held.pin()

    def _alone(self, **options: Any) -> Dataset:
        """The same chain with passes of its own: a Loader may keep it without a cycle.

        Its passes build their Loaders with `options`.
        """
        method, arguments = self._recipe
        alone = self._make(method, arguments, self._inputs, self, self._several)
        alone._plans, alone._spec = dict(self._plans), self._spec
        alone._passes = Passes(**options)
        return alone

    def _functions(self) -> bool:
        """Whether the chain calls a user's function or object."""
        return any(chain._held is not None for chain in self._chains())

    def _has_stage(self, method: str) -> bool:
        return any(chain._recipe[0] == method for chain in self._chains())

    def _no_state(self) -> str:
        """Why a position cannot be saved, as a function of the chain says; empty: it can."""
        for chain in self._chains():
            if chain._held is not None:
                reason = getattr(chain._recipe[1][0], "__penstock_no_state__", "")
                if reason:
                    return str(reason)
        return ""

    def _operations(self) -> int:
        """How many stages have a number, as the engine's plan counts them."""
        return sum(chain._recipe[0].startswith(_NUMBERED) for chain in self._chains())

    def _batch_size(self, operation: str) -> int:
        """Return the rows of a batch, if only repeat and prefetch follow `batch`."""
        chain: Chain = self
        while chain._recipe[0] in ("repeat", "prefetch"):
            chain = chain._inputs[0]
        if chain._recipe[0] != "batch":
            raise InvalidArgument(
                f"{chain._native.title()} is before random functions of a device; only repeat and "
                "prefetch may be between batch and them",
                operation,
            )
        return int(chain._recipe[1][0])

    def _built(self, skip: bool) -> Any:
        """The engine's plan for feeds that skip failures (`skip`) or raise them.

        Both plans have the same files and caches.
        """
        with self._lock.here():
            if skip not in self._plans:
                other = self._plans.get(not skip)
                self._plans[skip] = (
                    self._native.build(skip)
                    if other is None
                    else self._native.build_with(
                        skip, other.files_fd(), [os.dup(fd) for fd in other.cache_fds()]
                    )
                )
            return self._plans[skip]

    def _any_built(self) -> Any:
        """Any built plan, for properties that both plans have."""
        return self._plans.get(True) or self._built(False)


def datasets(method: str, inputs: Iterable[Any], least: int = 0) -> tuple[Dataset, ...]:
    """Return the inputs of a stage, checked.

    Raises
    ------
    InvalidArgument
        `inputs` is not a list, has an item that is not a Dataset, or has too few items.
    """
    # A Dataset is iterable, too, and may be endless.
    if isinstance(inputs, Chain) or not isinstance(inputs, Iterable):
        raise InvalidArgument(f"{inputs!r} is not a list; give a list of Datasets", method)
    inputs = tuple(inputs)
    if len(inputs) < least:
        raise InvalidArgument("there are no inputs; give Datasets", method)
    for given in inputs:
        if not isinstance(given, Chain):
            raise InvalidArgument(f"{given!r} is not a Dataset", method)
    return inputs
