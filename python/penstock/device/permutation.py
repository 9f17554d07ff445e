"""The order of an epoch as integer operations of a framework: bit-equal to the engine's.

The algorithm is that of penstock/base/bijection.h: a table for up to 256 elements, and above that
an alternating Feistel network whose results beyond the length go through it again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .words import PYTHON, JaxWords, TorchWords, Words, derived_key, halves, philox

_TABLE = 256  # up to this length the order is a shuffled table
_ROUNDS = 12
_ORDER = 1  # the use of the key: KeyUse::kOrder


@dataclass(frozen=True)
class Shape:
    """The network's rectangle for a length. Depends on nothing else, so jax compiles it once."""

    length: int
    rows: int
    column_bits: int

    @classmethod
    def of(cls, length: int) -> Shape:
        column_bits = (length - 1).bit_length() // 2
        return cls(length, ((length - 1) >> column_bits) + 1, column_bits)


@functools.lru_cache(maxsize=64)
def _keys(length: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the keys of the network's rounds; for a table, the two words of its key."""
    key = derived_key(seed, epoch, _ORDER)
    if length <= _TABLE:
        return key
    blocks = (philox(PYTHON, (j, 0, *halves(length)), key) for j in range(_ROUNDS // 4))
    return tuple(word for block in blocks for word in block)


def _mix(words: Words, x: Any, key: Any) -> Any:
    x = words.multiply(words.xor(x, key), 0x9E3779B1)
    return words.multiply(words.xor(x, x >> words.word(15)), 0x85EBCA77)


def _network(words: Words, shape: Shape, keys: Sequence[Any], positions: Any) -> Any:
    """Apply the network once. `positions`: words, or for torch any int64."""
    bits, mask = words.word(shape.column_bits), words.word((1 << shape.column_bits) - 1)
    up = words.word(32 - shape.column_bits)
    row, column = positions >> bits, positions & mask
    for i in range(0, _ROUNDS, 2):
        row = row + words.multiply_high(_mix(words, column, keys[i]), shape.rows)
        # Modulo rows: a difference that wraps is the larger one.
        row = words.minimum(row, words.subtract(row, shape.rows))
        column = (column + (_mix(words, row, keys[i + 1]) >> up)) & mask
    return row << bits | column


def _partners(words: Words, blocks: Any, ordinals: Any, key: Sequence[Any], stack: Any) -> Any:
    """Return the place that each place of the table is swapped with.

    `blocks`: numbers of the Philox blocks; `ordinals`: 1, 2, ... length.
    """
    length = ordinals.shape[0]
    drawn = stack(philox(words, (blocks, 0, length, 0), key)).reshape(-1)[:length]
    return words.multiply_high(drawn, ordinals)


def torch_permuted(length: int, seed: int, epoch: int, positions: Any) -> Any:
    """Return the elements at `positions` (int64 tensor) of an epoch's order, on their device.

    The host waits for the device: once, and again in the rare case that a result is beyond the
    length twice.

    Parameters
    ----------
    length : int
        Elements of the order; at most 2^62.
    """
    import torch

    words, keys = TorchWords(), _keys(length, seed, epoch)
    if length <= _TABLE:
        here = positions.device
        blocks = torch.arange((length + 3) // 4, device=here)
        places = torch.arange(length, device=here)
        stack = functools.partial(torch.stack, dim=1)
        partners = _partners(words, blocks, places + 1, keys, stack)
        # The engine swaps the places length - 1, ..., 1 with their partners. Follow each place's
        # final element back to where it came from.
        table = partners.clone()
        for last in range(1, length):
            moved = (table == partners[last]) & (places < last)
            table.masked_fill_(moved, last)
        return table[positions]
    shape = Shape.of(length)
    out = _network(words, shape, keys, positions)
    beyond = (out >= length).nonzero().squeeze(1)
    while beyond.numel() > 0:
        again = _network(words, shape, keys, out[beyond])
        out[beyond] = again
        beyond = beyond[again >= length]
    return out


def jax_permuted(length: int, seed: int, epoch: int, positions: Any) -> Any:
    """Return the elements at `positions` (uint32) of an epoch's order, on their device.

    Parameters
    ----------
    length : int
        Elements of the order; at most 2^31.
    """
    keys = np.array(_keys(length, seed, epoch), np.uint32)
    return _jax_order()(length, keys, positions)


@functools.cache
def _jax_order() -> Any:
    import jax
    import jax.numpy as jnp

    words = JaxWords()

    def table(length: int, keys: Any) -> Any:
        places = jnp.arange(length, dtype=jnp.uint32)
        blocks = jnp.arange((length + 3) // 4, dtype=jnp.uint32)
        stack = functools.partial(jnp.stack, axis=1)
        partners = _partners(words, blocks, places + np.uint32(1), keys, stack)

        def back(last: Any, table: Any) -> Any:
            last = last.astype(jnp.uint32)
            return jnp.where((table == partners[last]) & (places < last), last, table)

        return jax.lax.fori_loop(1, length, back, partners)

    def order(length: int, keys: Any, positions: Any) -> Any:
        if length <= _TABLE:
            return table(length, keys)[positions]
        apply = functools.partial(_network, words, Shape.of(length), keys)
        beyond = np.uint32(length)
        return jax.lax.while_loop(
            lambda out: jnp.any(out >= beyond),
            lambda out: jnp.where(out >= beyond, apply(out), out),
            apply(positions),
        )

    return jax.jit(order, static_argnums=0)
