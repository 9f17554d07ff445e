"""The batches of each round of towers, whichever way they are fed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..feeds import Feeds

NONE = object()  # a tower has no batch in this round


class Rounds:
    """The batches of each round, whichever way they are fed."""

    def __init__(self, feed: Iterable[Any], towers: int, deal: str) -> None:
        self._feed = feed
        self._towers = towers
        self._parts = deal == "parts"
        self._each = deal == "feeds" or isinstance(feed, Feeds)
        if self._each:
            count = len(feed) if isinstance(feed, Sequence) else -1
            if count != towers:
                raise InvalidArgument(
                    f'deal="feeds" needs a list of {towers} feeds, one for each tower; this is '
                    + (f"one of {count}" if count >= 0 else f"a {type(feed).__name__}"),
                    "Towers",
                )

    def rounds(self, epochs: int | None) -> Iterator[list[Any]]:
        while epochs is None or epochs > 0:
            epochs = None if epochs is None else epochs - 1
            fresh = True
            for batches in self._pass():
                fresh = False
                yield batches
            if fresh:
                return  # an iterator that has no second pass

    def _pass(self) -> Iterator[list[Any]]:
        if self._each:
            iterators: list[Any] = [iter(feed) for feed in self._feed]
            while True:
                batches = []
                for tower, iterator in enumerate(iterators):
                    batches.append(NONE if iterator is None else next(iterator, NONE))
                    if batches[-1] is NONE:
                        iterators[tower] = None  # not asked again: it might begin anew
                if iterators.count(None) == len(iterators):
                    return
                yield batches
        elif self._parts:
            for batches in self._feed:
                if not isinstance(batches, (tuple, list)) or len(batches) != self._towers:
                    raise InvalidArgument(
                        f"with deal='parts' the feed gives tuples of {self._towers} batches; this "
                        f"is a {type(batches).__name__}",
                        "Towers",
                    )
                yield list(batches)
        else:
            batches = []
            for batch in self._feed:
                batches.append(batch)
                if len(batches) == self._towers:
                    yield batches
                    batches = []
            if batches:
                yield batches + [NONE] * (self._towers - len(batches))
