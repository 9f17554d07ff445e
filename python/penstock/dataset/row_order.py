"""A chain as rows in stored order, and the order in which its batches use them.

For consumers that keep the rows and repeat the order themselves: `penstock.device.resident`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _engine
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from .chain import Chain
    from .dataset import Dataset

# Permutes positions: (length, seed, epoch, positions) -> elements.
Permute = Callable[[int, int, int, Any], Any]

# Stages that change neither the number of elements nor their order.
_EACH = ("map_op", "map_python", "assert_cardinality")
# Native operations that draw random numbers; each has a `p` or a range.
_RANDOM = frozenset(
    f"image_{name}"
    for name in (
        *("random_crop", "random_resized_crop", "random_flip", "random_affine", "perspective"),
        *("color_jitter", "invert", "posterize", "solarize", "autocontrast", "equalize"),
        *(
            "sharpness",
            "gamma",
            "channel_shift",
            "rand_augment",
            "auto_augment",
            "trivial_augment_wide",
        ),
        *("gaussian_blur", "erase", "mixup", "cutmix", "keras"),
    )
)


@dataclass(frozen=True)
class Stage:
    """A stage that maps positions to positions of its input."""

    method: str  # of the engine's Dataset
    arguments: tuple[Any, ...]
    length: int  # elements of the input

    def elements(self, base: int = 0) -> int:
        """The stage's elements, for an epoch that is entered at `base` (see `RowOrder`)."""
        if self.method == "shuffle":
            return self.length
        if self.method == "take":
            return min(int(self.arguments[0]), self.length)
        if self.method == "skip":
            return self.length - min(int(self.arguments[0]), self.length)
        rank, world, remainder = self.arguments
        left = self.length - min(base, self.length)
        whole, over = divmod(left, int(world))
        return whole + int({"keep": rank < over, "drop": False, "pad": over != 0}[remainder])

    def below(self, positions: Any, epoch: int, base: int, permute: Permute) -> Any:
        """Return the positions in the input. `positions`: an int, or an array of any framework."""
        if self.method == "take":
            return positions
        if self.method == "skip":
            return positions + self.arguments[0]
        if self.method == "shuffle":
            seed, reshuffle = self.arguments
            return permute(self.length, seed, epoch if reshuffle else 0, positions)
        rank, world, remainder = self.arguments
        positions = positions * world + (base + rank)
        return positions % self.length if remainder == "pad" else positions


@dataclass
class RowOrder:
    """The rows of a chain, and the rows of each batch of an epoch. Immutable; any thread.

    `base`, as in a Loader's position: the batches that all ranks together used of this epoch before
    the number of ranks changed; else 0.
    """

    rows: Dataset  # every row once, in stored order, without random numbers
    length: int  # of `rows`
    batch_size: int
    drop_last: bool
    rounds: int  # epochs of a pass; 0: endless
    stages: list[Stage] = field(default_factory=list)  # between rows and batch, from the top down
    above: list[Stage] = field(default_factory=list)  # above the batch, from the top down
    sharded_rows: bool = False  # `rows` are one rank's share: `base` must be 0

    @property
    def has_all_rows(self) -> bool:
        """Whether the batches of every epoch have each row once."""
        left_out = self.length % self.batch_size if self.drop_last else 0
        shuffled = all(stage.method == "shuffle" for stage in self.stages)
        return shuffled and not self.above and left_out == 0

    def elements(self, base: int = 0) -> int:
        """The elements that an epoch makes batches of."""
        if not self.stages:
            return self.length
        first = self.stages[0]
        return first.elements(0 if self.above else base * self.batch_size)

    def steps(self, base: int = 0) -> int:
        """The batches of an epoch that is entered at `base`."""
        return self.above[0].elements(base) if self.above else self._batches(base)

    def _batches(self, base: int = 0) -> int:
        elements = self.elements(base)
        return elements // self.batch_size if self.drop_last else -(-elements // self.batch_size)

    def span(self, epoch: int, base: int, step: int) -> tuple[int, int]:
        """Return the first position of a batch, and its number of rows."""
        batch = step
        for stage in self.above:
            batch = stage.below(batch, epoch, base, _engine_permutation)
            base = 0 if stage.method == "shard" else base
        first = batch * self.batch_size
        return first, min(self.batch_size, self.elements(base) - first)

    def indices(self, positions: Any, epoch: int, base: int, permute: Permute) -> Any:
        """Return the rows at `positions` of an epoch's elements, by the arithmetic of `permute`."""
        base = 0 if self.above else base * self.batch_size
        for stage in self.stages:
            positions = stage.below(positions, epoch, base, permute)
            base = 0
        return positions


def row_order(dataset: Dataset, operation: str) -> RowOrder:
    """Take a chain apart.

    Raises
    ------
    InvalidArgument
        The rows cannot be kept, or their order cannot be repeated: the chain is a stream, is not
        batched or is endless below the batch, or has random operations or unsupported stages.
    """
    chain: Chain = dataset
    rounds, above = 1, []
    while chain._recipe[0] in ("repeat", "prefetch"):
        if chain._recipe[0] == "repeat":
            count = chain._recipe[1][0]
            rounds *= 0 if count is None else count
        chain = chain._inputs[0]
    while chain._recipe[0] in ("take", "skip", "shard"):
        above.append(chain)
        chain = chain._inputs[0]
    method, arguments = chain._recipe
    if method != "batch":
        _refuse_above(chain, operation)
    batch_size, drop_last = arguments
    chain = chain._inputs[0]

    walked: list[Chain] = []
    while _is_walked(chain):
        walked.append(chain)
        chain = chain._inputs[0]
    _check_base(chain, operation)
    for stage in walked:
        _refuse_random(stage, operation)
    while walked and walked[-1]._recipe[0] != "shuffle":
        chain = _again(walked.pop(), chain)  # it has the same elements in every epoch
    plan = chain._any_built()
    if plan.streamed or plan.length is None:
        raise InvalidArgument(
            f"{chain!r} is a stream, whose elements cannot be gathered in another order; store "
            "them first: penstock.write, or cache()",
            operation,
        )
    if plan.length == _engine.ENDLESS or plan.rounds == _engine.ENDLESS:
        raise InvalidArgument(f"{chain!r} has no end; put repeat behind batch", operation)
    length = int(plan.length * plan.rounds)
    rows, elements = chain, length
    stages: list[Stage] = []
    for stage in reversed(walked):
        method, arguments = stage._recipe
        if method in _EACH or method == "on_error":
            if method != "assert_cardinality":
                rows = _again(stage, rows)
            continue
        stages.insert(0, Stage(method, arguments, elements))
        elements = stages[0].elements()
    made: Any = rows
    order = RowOrder(made, length, batch_size, drop_last, rounds, stages)
    batches = order._batches()
    for stage in reversed(above):
        order.above.insert(0, Stage(*stage._recipe, batches))
        batches = order.above[0].elements()
    order.sharded_rows = chain._has_stage("shard")
    return order


def _is_walked(chain: Chain) -> bool:
    method, arguments = chain._recipe
    if method == "on_error":
        return bool(arguments[0] == "raise")
    return method in (*_EACH, "shuffle", "take", "skip", "shard")


def _again(stage: Chain, below: Chain) -> Any:
    """Add a stage of the user's chain to another input."""
    return stage._make(*stage._recipe, (below,))  # type: ignore[arg-type]


def _check_base(chain: Chain, operation: str) -> None:
    """Raise an error for stages whose elements differ between epochs; a cache stops the change."""
    left = [chain]
    while left:
        chain = left.pop()
        method = chain._recipe[0]
        if method == "cache":
            continue
        if method.startswith("shuffle"):
            better = (
                "use shuffle(seed=), which costs nothing on a device"
                if method != "shuffle"
                else "put it directly below batch, with only maps, take, skip and shard between "
                "them, and put repeat behind batch"
            )
            raise InvalidArgument(
                f"the order of {_title(chain)} cannot be repeated on a device here: {better}",
                operation,
            )
        _refuse_random(chain, operation)
        if method == "on_error":
            raise InvalidArgument(
                f"{_title(chain)} would change the number of rows; repair or leave out the "
                "elements that fail",
                operation,
            )
        left += chain._inputs


def _refuse_random(chain: Chain, operation: str) -> None:
    method, arguments = chain._recipe
    name = getattr(arguments[0], "_recipe", ("",))[0] if method == "map_op" else ""
    if name in _RANDOM:
        raise InvalidArgument(
            f"{_title(chain)} draws new random numbers in every epoch, and the rows are kept: "
            "put it behind batch as a function of the device: map(operation, device=...) with "
            'on="device" or a function of your own',
            operation,
        )


def _refuse_above(chain: Chain, operation: str) -> NoReturn:
    method = chain._recipe[0]
    if method in ("map_op", "map_python"):
        raise InvalidArgument(
            f"{_title(chain)} is behind batch: put it before batch, where it runs once for each "
            "row, or run it on the device: dataset.map(function, device=...)",
            operation,
        )
    if chain._batching() is None:  # type: ignore[attr-defined]
        raise InvalidArgument(f"{chain!r} has no batches; add batch(n)", operation)
    raise InvalidArgument(
        f"{_title(chain)} cannot run on a device: only repeat, prefetch, take, skip and shard may "
        "follow batch, and rows of one shape are stacked by batch",
        operation,
    )


def _title(chain: Chain) -> str:
    return str(chain._native.title())


def _engine_permutation(length: int, seed: int, epoch: int, position: int) -> int:
    return int(_engine.Permutation(length, seed, epoch)[position])
