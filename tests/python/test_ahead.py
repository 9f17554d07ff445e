"""Which batches are sent to a device before the consumer asks for them."""

from __future__ import annotations

import types

import pytest

from penstock.device.ahead import Ahead


class Host:
    """A Loader of 8 batches, of which `ready` are made."""

    def __init__(self, ready: int) -> None:
        self.ready, self.taken = ready, 0
        self._epochs = types.SimpleNamespace(open=None)
        self._info = types.SimpleNamespace(pass_of=lambda epoch: epoch)
        core = {"state": lambda: str(self.taken), "position": lambda: (0, 0, self.taken)}
        self._core = types.SimpleNamespace(ready=lambda: self.ready - self.taken, **core)

    def __iter__(self):
        while self.taken < 8:
            self.taken += 1
            yield self.taken - 1


def pairs(ahead: Ahead, host: Host, send):
    """What was delivered, and how many had been sent by then."""
    return [(batch, host.taken) for batch in ahead.run(lambda: host, iter(host), 0, send)]


def test_the_first_batch_is_delivered_before_others_are_sent():
    host, ahead = Host(ready=8), Ahead(2)
    got = pairs(ahead, host, lambda batch: batch)
    assert got == [(0, 1), (1, 4), (2, 5), (3, 6), (4, 7), (5, 8), (6, 8), (7, 8)]
    again = pairs(ahead, Host(ready=8), lambda batch: batch)
    assert again[0] == (0, 3), "the memory is there from the first pass on"


def test_only_batches_that_are_made_are_sent():
    assert pairs(Ahead(2), Host(ready=0), lambda batch: batch) == [(i, i + 1) for i in range(8)]


def test_a_batch_that_finds_no_memory_is_sent_when_another_one_was_delivered():
    held = []

    def send(batch):
        if len(held) == 2:
            raise MemoryError
        held.append(batch)
        return batch

    host, ahead, got = Host(ready=8), Ahead(3), []
    for batch in ahead.run(lambda: host, iter(host), 0, send):
        got.append(batch)
        held.remove(batch)
        assert ahead.position is None or int(ahead.position) == batch + 1
    assert got == list(range(8))
    assert ahead.most == 1


def test_a_batch_that_never_fits_is_an_error():
    def send(batch):
        raise MemoryError

    with pytest.raises(MemoryError):
        pairs(Ahead(2), Host(ready=8), send)
