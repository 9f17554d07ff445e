"""Random chains of stages: equal seeds give equal chains."""

from __future__ import annotations

import random
from collections.abc import Callable

from chains import (
    Chain,
    IsNot,
    Opens,
    Rest,
    Scaled,
    asserted,
    batched,
    bucketed,
    buffered,
    casted,
    chosen,
    counted,
    endless,
    filtered,
    flat_mapped,
    generated,
    interleaved,
    interleaved_with,
    joined,
    listed,
    mapped,
    numbered,
    once,
    padded,
    rebatched,
    repeated,
    sampled,
    scanned,
    sharded,
    shuffled,
    shuffled_blocks,
    skipped,
    taken,
    taken_while,
    totalled,
    unbatched,
    windowed,
    zipped,
)

MOST = 150  # elements of a pass; random orders are modelled up to 256


class Dice:
    """Draws random chains; equal seeds give equal chains."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def upto(self, most: int, least: int = 0) -> int:
        return self.random.randint(least, most)

    def yes(self) -> bool:
        return self.random.random() < 0.5

    def source(self) -> Chain:
        kind = self.upto(9)
        if kind == 0:
            return generated(self.upto(90))
        if kind == 1:
            return listed([self.upto(999) for _ in range(self.upto(20, 1))])
        if kind == 2:
            return counted(self.upto(300), self.upto(30), -self.upto(9, 2))
        begin = self.upto(50)
        return counted(begin, begin + self.upto(100), self.upto(3, 1))

    def chain(self, stages: int) -> Chain:
        chain = self.source()
        for _ in range(stages):
            chain = self.stage(chain)
            if max(len(chain.elements(epoch)) for epoch in range(3)) > MOST:
                chain = taken(chain, self.upto(MOST, MOST // 2))
        return chain

    def others(self) -> list[Chain]:
        return [self.chain(self.upto(2)) for _ in range(self.upto(2, 1))]

    def stage(self, chain: Chain) -> Chain:
        draw = self.upto
        opens = Opens(draw(6))
        stages: list[Callable[[], Chain]] = [
            lambda: taken(chain, draw(60)),
            lambda: skipped(chain, draw(20)),
            lambda: mapped(chain, Scaled(draw(7, 1), draw(9))),
            lambda: filtered(chain, IsNot(draw(2), draw(4, 2))),
            lambda: taken_while(chain, IsNot(draw(15), draw(40, 16))),
            lambda: sharded(chain, draw(1), draw(4, 2), "keep"),
            lambda: repeated(chain, draw(3, 1)),
            lambda: endless(chain, draw(70)) if chain.elements(0) else chain,
            lambda: joined([chain, *self.others()]),
            lambda: zipped(chain, self.chain(draw(2))),
            lambda: numbered(chain, draw(9)),
            lambda: buffered(chain, draw(12, 1), draw(9)),
            lambda: once(chain, Rest(draw(30, 1)) if self.yes() else None),
            lambda: scanned(chain, draw(9)),
            lambda: flat_mapped(chain, opens),
            lambda: interleaved([chain, *self.others()], draw(3, 1), draw(4, 1)),
            lambda: interleaved_with(chain, opens, draw(4, 1), draw(3, 1)),
            lambda: self.choosing(chain),
            lambda: self.sampling(chain),
            lambda: totalled(batched(chain, draw(6, 1), self.yes())),
            lambda: totalled(windowed(chain, draw(5, 1), draw(5, 1), draw(3, 1), self.yes())),
            lambda: unbatched(batched(chain, draw(70, 1), self.yes())),
            lambda: rebatched(chain, draw(9, 1), draw(9, 1)),
            lambda: padded(chain, draw(5, 1)),
            lambda: bucketed(chain, [2, 4], [draw(3, 1), draw(4, 1), draw(2, 1)], self.yes()),
            lambda: casted(chain),
        ]
        if chain.indexed:
            remainder = self.random.choice(("drop", "pad"))
            stages += [
                lambda: sharded(chain, draw(1), draw(4, 2), remainder),
                lambda: shuffled(chain, draw(9), self.yes()),
                lambda: shuffled(chain, draw(9), self.yes()),
                lambda: shuffled_blocks(chain, draw(9), draw(9, 1), draw(4, 1)),
                lambda: asserted(chain),
            ]
        return self.random.choice(stages)()

    def choosing(self, chain: Chain) -> Chain:
        chains = [chain, *self.others()]
        choices = mapped(self.chain(self.upto(2)), Rest(len(chains)))
        return chosen(choices, chains, self.yes())

    def sampling(self, chain: Chain) -> Chain:
        chains = [chain, *self.others()]
        weights = [1.0 + self.upto(3) for _ in chains]
        return sampled(chains, weights, self.upto(9), self.yes())

    def mixed_batches(self, batches: Chain) -> Chain:
        if self.yes():
            mixed = shuffled(batches, self.upto(9), self.yes())
        else:
            mixed = shuffled_blocks(batches, self.upto(9), self.upto(9, 1), self.upto(4, 1))
        return repeated(mixed, self.upto(3, 1)) if self.yes() else taken(mixed, self.upto(30))

    def whole(self) -> Chain:
        """A random chain, possibly with a last stage."""
        chain = self.chain(self.upto(5, 1))
        ends: list[Callable[[], Chain]] = [
            lambda: chain,
            lambda: chain.then(chain.dataset.prefetch(self.upto(4, 1)), chain.elements),
            lambda: batched(chain, self.upto(9, 1), self.yes()),
            lambda: taken(batched(chain, self.upto(9, 1), False), self.upto(6)),
            lambda: repeated(batched(chain, self.upto(9, 1), self.yes()), self.upto(3, 1)),
        ]
        if chain.indexed:
            ends += [lambda: self.mixed_batches(batched(chain, self.upto(9, 1), False))]
        return self.random.choice(ends)()
