"""Random chains of all stages against a reference in plain Python, from every place."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock
from chain_dice import Dice
from chains import Chain
from contract import INLINE, PROCESSES, Mode, options, passed, plain

WORKERS = (INLINE, Mode(1), Mode(4))


def expected_of(chain: Chain, number: int) -> list[Any]:
    def listed(value: Any) -> Any:
        return [listed(each) for each in value] if isinstance(value, list) else int(value)

    return [listed(value) for value in chain.elements(number)]


def check(chain: Chain, dice: Dice, modes: tuple[Mode, ...]) -> None:
    """Two passes, and restoring at some places, each time with other workers."""
    expected = [expected_of(chain, number) for number in range(3)]
    count = chain.dataset.cardinality()
    assert count is None or count == len(expected[0])
    one, other = dice.random.choice(modes), dice.random.choice(modes)
    with (
        chain.dataset.build(**options(one)) as feed,
        chain.dataset.build(**options(other)) as again,
    ):
        for number in range(2):
            iterator = iter(feed)
            few = len(expected[number]) <= 12
            for place, wanted in enumerate(expected[number]):
                if few or dice.upto(11) == 0:
                    state = json.loads(json.dumps(feed.state()))
                    again.restore(state)
                    rest = passed(again)
                    assert rest == expected[number][place:], f"pass {number} from {place}: {state}"
                    if dice.yes():
                        assert passed(again) == expected[number + 1], f"behind pass {number}"
                made = plain(next(iterator))
                assert made == wanted, f"pass {number}, element {place}"
            assert [plain(more) for more in iterator] == []


def run(seed: int, modes: tuple[Mode, ...]) -> None:
    dice = Dice(seed)
    chain = dice.whole()
    try:
        check(chain, dice, modes)
    except BaseException as error:
        raise AssertionError(f"chain {seed}: {chain.dataset!r}") from error


@pytest.mark.parametrize("block", range(4))
def test_chains_give_what_the_reference_says(block):
    for seed in range(block * 50, block * 50 + 50):
        run(seed, WORKERS)


def test_in_processes_too():
    for seed in range(5000, 5006):
        run(seed, (PROCESSES,))


@pytest.mark.parametrize("mode", WORKERS)
def test_a_shuffle_of_batches_gives_every_row_once_in_every_epoch(mode):
    """The short batch is at another place in every epoch."""
    batches = penstock.Dataset.range(33).batch(4)
    for mixed in (batches.shuffle(seed=3), batches.shuffle(seed=3, block=2, window=2)):
        with mixed.build(**options(mode)) as feed, mixed.repeat(3).build(**options(mode)) as rounds:
            for _ in range(4):
                assert sorted(row for batch in passed(feed) for row in batch) == list(range(33))
            assert sorted(row for batch in passed(rounds) for row in batch) == sorted(
                3 * list(range(33))
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [*range(4), *(pytest.param(block, marks=pytest.mark.soak) for block in range(4, 20))]
)
def test_many_chains_give_what_the_reference_says(block):
    for seed in range(10_000 + block * 200, 10_200 + block * 200):
        run(seed, WORKERS)
    for seed in range(50_000 + block * 5, 50_005 + block * 5):
        run(seed, (INLINE, PROCESSES))
