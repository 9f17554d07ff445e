"""Chains of stages, and a reference implementation from the documentation of tf.data (or penstock).

Each stage is a few lines over lists, without code of the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import penstock
import reference_random as at
from penstock import Dataset

Elements = Callable[[int], list[Any]]  # of an epoch


@dataclasses.dataclass(frozen=True)
class Chain:
    """A Dataset of numbers, and its reference."""

    dataset: Dataset
    elements: Elements
    indexed: bool

    def then(self, dataset: Dataset, elements: Elements, indexed: bool | None = None) -> Chain:
        known: dict[int, list[Any]] = {}

        def remembered(epoch: int) -> list[Any]:
            if epoch not in known:
                known[epoch] = elements(epoch)
            return known[epoch]

        return Chain(dataset, remembered, self.indexed if indexed is None else indexed)


# ---- functions, which travel to workers ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scaled:
    by: int
    plus: int

    def __call__(self, n: Any) -> Any:
        return (n * self.by + self.plus) % 1000


@dataclasses.dataclass(frozen=True)
class Rest:
    of: int

    def __call__(self, n: Any) -> Any:
        return n % self.of


@dataclasses.dataclass(frozen=True)
class IsNot:
    rest: int
    of: int

    def __call__(self, n: Any) -> bool:
        return bool(n % self.of != self.rest)


def added(a: Any, b: Any) -> Any:
    return (a + b) % 1000


def total(batch: Any) -> Any:
    return np.int64(np.sum(batch) % 1000)


def as_long(n: Any) -> Any:
    return np.arange(n % 6)


def summed(carry: Any, n: Any) -> Any:
    carry = (carry * 3 + n) % 1000
    return carry, carry


@dataclasses.dataclass(frozen=True)
class Opens:
    """A Dataset that begins with an element."""

    which: int

    def __call__(self, n: Any) -> Dataset:
        return self.chain(int(n)).dataset

    def chain(self, n: int) -> Chain:
        if self.which == 0:
            return counted(0, n % 5)
        if self.which == 1:
            return shuffled(counted(n, n + n % 7), n % 3)
        if self.which == 2:
            return filtered(counted(0, 10), IsNot(n % 3, 3))
        if self.which == 3:
            return repeated(counted(n, n + 1), 1 + n % 3)
        if self.which == 4:
            return skipped(rebatched(counted(0, 6), 2, 3), n % 4)
        if self.which == 5:
            return buffered(joined([counted(0, 3), counted(5, 5 + n % 3)]), 2, n % 5)
        return flat_mapped(counted(0, n % 3), Opens(1))


# ---- stages --------------------------------------------------------------------------------------


def counted(begin: int, end: int, step: int = 1) -> Chain:
    numbers = list(range(begin, end, step))
    return Chain(Dataset.range(begin, end, step), lambda epoch: numbers, True)


def listed(numbers: list[int]) -> Chain:
    given = [np.int64(n) for n in numbers]
    return Chain(Dataset.items(given), lambda epoch: numbers, True)


def generated(count: int) -> Chain:
    return Chain(
        Dataset.generator(lambda: iter(range(count))), lambda epoch: list(range(count)), False
    )


def taken(chain: Chain, n: int) -> Chain:
    return chain.then(chain.dataset.take(n), lambda epoch: chain.elements(epoch)[:n])


def skipped(chain: Chain, n: int) -> Chain:
    return chain.then(chain.dataset.skip(n), lambda epoch: chain.elements(epoch)[n:])


def mapped(chain: Chain, function: Callable[[Any], Any]) -> Chain:
    return chain.then(
        chain.dataset.map(function), lambda epoch: [function(n) for n in chain.elements(epoch)]
    )


def filtered(chain: Chain, predicate: Callable[[Any], bool]) -> Chain:
    return chain.then(
        chain.dataset.filter(predicate),
        lambda epoch: [n for n in chain.elements(epoch) if predicate(n)],
        False,
    )


def taken_while(chain: Chain, predicate: Callable[[Any], bool]) -> Chain:
    def elements(epoch: int) -> list[Any]:
        all_of_them = chain.elements(epoch)
        end = next((i for i, n in enumerate(all_of_them) if not predicate(n)), None)
        return all_of_them[:end]

    return chain.then(chain.dataset.take_while(predicate), elements, False)


def sharded(chain: Chain, rank: int, world: int, remainder: str) -> Chain:
    def elements(epoch: int) -> list[Any]:
        left = list(chain.elements(epoch))
        while remainder == "drop" and len(left) % world:
            left.pop()
        if remainder == "pad" and left:
            first = list(left)
            while len(left) % world:
                left.append(first[(len(left) - len(first)) % len(first)])
        return left[rank::world]

    return chain.then(chain.dataset.shard(rank, world, remainder=remainder), elements)


def repeated(chain: Chain, count: int) -> Chain:
    return chain.then(
        chain.dataset.repeat(count),
        lambda epoch: [
            n for round_ in range(count) for n in chain.elements(epoch * count + round_)
        ],
    )


def endless(chain: Chain, n: int) -> Chain:
    """An endless repeat, and the first `n` elements of it."""

    def elements(epoch: int) -> list[Any]:
        out: list[Any] = []
        round_ = epoch * 2**32 % 2**64
        while len(out) < n:
            some = chain.elements(round_)
            if not some:
                return out
            out += some
            round_ += 1
        return out[:n]

    return chain.then(chain.dataset.repeat().take(n), elements)


def joined(chains: list[Chain]) -> Chain:
    return Chain(
        chains[0].dataset.concatenate(*(each.dataset for each in chains[1:])),
        lambda epoch: [n for each in chains for n in each.elements(epoch)],
        all(each.indexed for each in chains),
    )


def zipped(one: Chain, other: Chain) -> Chain:
    return Chain(
        Dataset.zip(one.dataset, other.dataset).map(added),
        lambda epoch: [
            added(a, b) for a, b in zip(one.elements(epoch), other.elements(epoch), strict=False)
        ],
        one.indexed and other.indexed,
    )


def numbered(chain: Chain, start: int) -> Chain:
    return chain.then(
        chain.dataset.enumerate(start).map(added),
        lambda epoch: [added(i, n) for i, n in enumerate(chain.elements(epoch), start)],
    )


def shuffled(chain: Chain, seed: int, reshuffle: bool = True) -> Chain:
    def elements(epoch: int) -> list[Any]:
        all_of_them = chain.elements(epoch)
        key = at.derived(seed, epoch if reshuffle else 0, at.ORDER)
        return [all_of_them[place] for place in at.permutation(len(all_of_them), key)]

    return chain.then(chain.dataset.shuffle(seed=seed, reshuffle=reshuffle), elements)


def shuffled_blocks(chain: Chain, seed: int, block: int, window: int) -> Chain:
    def elements(epoch: int) -> list[Any]:
        all_of_them = chain.elements(epoch)
        order = at.block_order(len(all_of_them), seed, epoch, block, window)
        return [all_of_them[place] for place in order]

    return chain.then(chain.dataset.shuffle(seed=seed, block=block, window=window), elements)


def buffered(chain: Chain, size: int, seed: int) -> Chain:
    def elements(epoch: int) -> list[Any]:
        left, buffer, out = chain.elements(epoch)[::-1], [], []
        key = at.derived(seed, epoch, at.BUFFER)
        while True:
            while left and len(buffer) < size:
                buffer.append(left.pop())
            if not buffer:
                return out
            place = at.below(key, len(out), len(buffer))
            out.append(buffer[place])
            buffer[place] = buffer[-1]
            buffer.pop()

    return chain.then(chain.dataset.shuffle(seed=seed, buffer=size), elements, False)


def once(chain: Chain, key: Callable[[Any], Any] | None) -> Chain:
    def elements(epoch: int) -> list[Any]:
        first: dict[Any, Any] = {}
        for n in chain.elements(epoch):
            first.setdefault(n if key is None else key(n), n)
        return list(first.values())

    return chain.then(chain.dataset.unique(key=key), elements, False)


def scanned(chain: Chain, initial: int) -> Chain:
    def elements(epoch: int) -> list[Any]:
        carry, out = initial, []
        for n in chain.elements(epoch):
            carry, made = summed(carry, n)
            out.append(made)
        return out

    return chain.then(chain.dataset.scan(summed, initial), elements, False)


def flat_mapped(chain: Chain, opens: Opens) -> Chain:
    return chain.then(
        chain.dataset.flat_map(opens),
        lambda epoch: [
            m for n in chain.elements(epoch) for m in opens.chain(int(n)).elements(epoch)
        ],
        False,
    )


def in_turns(inputs: list[list[Any]], cycle: int, block: int) -> list[Any]:
    """tf.data's loop: the end of an input is detected when its turn comes."""
    waiting = inputs[::-1]
    places: list[list[Any] | None] = [None] * cycle
    out: list[Any] = []
    place = 0
    while waiting or any(each is not None for each in places):
        if places[place] is None and waiting:
            places[place] = waiting.pop()[::-1]
        opened = places[place]
        if opened is not None:
            for _ in range(block):
                if not opened:
                    places[place] = None
                    break
                out.append(opened.pop())
        place = (place + 1) % cycle
    return out


def interleaved(chains: list[Chain], cycle: int, block: int) -> Chain:
    return Chain(
        Dataset.interleave([each.dataset for each in chains], cycle=cycle, block=block),
        lambda epoch: in_turns([each.elements(epoch) for each in chains], cycle, block),
        all(each.indexed for each in chains),
    )


def interleaved_with(chain: Chain, opens: Opens, cycle: int, block: int) -> Chain:
    def elements(epoch: int) -> list[Any]:
        inputs = [opens.chain(int(n)).elements(epoch) for n in chain.elements(epoch)]
        return in_turns(inputs, cycle, block)

    dataset = chain.dataset.interleave(opens, cycle=cycle, block=block)
    return chain.then(dataset, elements, False)


def chosen(choices: Chain, chains: list[Chain], stop: bool) -> Chain:
    def elements(epoch: int) -> list[Any]:
        left = [each.elements(epoch)[::-1] for each in chains]
        out = []
        for choice in choices.elements(epoch):
            if left[choice]:
                out.append(left[choice].pop())
            elif stop:
                break
        return out

    dataset = Dataset.choose_from(
        choices.dataset, [each.dataset for each in chains], stop_on_empty=stop
    )
    return Chain(dataset, elements, False)


def sampled(chains: list[Chain], weights: list[float], seed: int, stop: bool) -> Chain:
    def elements(epoch: int) -> list[Any]:
        left = [each.elements(epoch)[::-1] for each in chains]
        over = [False] * len(chains)
        key = at.derived(seed, epoch, at.SAMPLE)
        out: list[Any] = []
        while True:
            open_ = [i for i in range(len(chains)) if weights[i] > 0 and not over[i]]
            if not open_:
                return out
            place = (at.draw(key, len(out)) >> 11) * 2.0**-53 * sum(weights[i] for i in open_)
            for which in open_:
                if place < weights[which]:
                    break
                place -= weights[which]
            if left[which]:
                out.append(left[which].pop())
            elif stop:
                return out
            else:
                over[which] = True

    dataset = Dataset.sample_from(
        [each.dataset for each in chains], weights=weights, seed=seed, stop_on_empty=stop
    )
    return Chain(dataset, elements, False)


def pieces(numbers: list[Any], size: int, drop: bool = False) -> list[list[Any]]:
    batches = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    return [batch for batch in batches if len(batch) == size or not drop]


def batched(chain: Chain, size: int, drop: bool) -> Chain:
    return chain.then(
        chain.dataset.batch(size, drop_last=drop),
        lambda epoch: pieces(chain.elements(epoch), size, drop),
    )


def totalled(chain: Chain) -> Chain:
    return chain.then(
        chain.dataset.map(total), lambda epoch: [sum(b) % 1000 for b in chain.elements(epoch)]
    )


def unbatched(chain: Chain) -> Chain:
    return chain.then(
        chain.dataset.unbatch(), lambda epoch: [n for b in chain.elements(epoch) for n in b], False
    )


def rebatched(chain: Chain, size: int, other: int) -> Chain:
    dataset = chain.dataset.batch(size).rebatch(other).unbatch()
    return chain.then(dataset, chain.elements, False)


def windowed(chain: Chain, size: int, shift: int, stride: int, drop: bool) -> Chain:
    def elements(epoch: int) -> list[Any]:
        numbers = chain.elements(epoch)
        windows = [
            numbers[first : first + (size - 1) * stride + 1 : stride]
            for first in range(0, len(numbers), shift)
        ]
        return [window for window in windows if len(window) == size or not drop]

    dataset = chain.dataset.window(size, shift=shift, stride=stride, drop_last=drop)
    return chain.then(dataset, elements)


def padded(chain: Chain, size: int) -> Chain:
    return chain.then(
        chain.dataset.map(as_long).padded_batch(size).map(total),
        lambda epoch: [
            sum(sum(range(n % 6)) for n in batch) % 1000
            for batch in pieces(chain.elements(epoch), size)
        ],
    )


def bucketed(chain: Chain, boundaries: list[int], sizes: list[int], drop: bool) -> Chain:
    def elements(epoch: int) -> list[Any]:
        buckets: list[list[int]] = [[] for _ in sizes]
        out = []
        for n in chain.elements(epoch):
            which = sum(n % 6 >= boundary for boundary in boundaries)
            buckets[which].append(n % 6)
            if len(buckets[which]) == sizes[which]:
                out.append(buckets[which])
                buckets[which] = []
        out += [bucket for bucket in buckets if bucket and not drop]
        return [sum(sum(range(length)) for length in batch) % 1000 for batch in out]

    dataset = chain.dataset.map(as_long).bucket_by_length(boundaries, sizes, drop_last=drop)
    return chain.then(dataset.map(total), elements, False)


def casted(chain: Chain) -> Chain:
    """Through native operations."""
    dataset = chain.dataset.map(penstock.cast("float64")).map(penstock.cast("int64"))
    return chain.then(dataset, chain.elements)


def asserted(chain: Chain) -> Chain:
    return chain.then(chain.dataset.assert_cardinality(len(chain.elements(0))), chain.elements)
