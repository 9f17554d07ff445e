"""Unsigned 32-bit words as arrays of a framework, and Philox over them.

The engine's random numbers and permutations are arithmetic modulo 2^32. torch has no multiplication
of uint32, so its words are int64 from 0 to 2^32 - 1. jax has no int64 by default; its words are
uint32. Words of Python are ints. Formulas are written once, over these three.
"""

from __future__ import annotations

from typing import Any, Protocol

_MASK = 0xFFFFFFFF


class Words(Protocol):
    """Arithmetic modulo 2^32. `a` are words; `k` are words or an int below 2^32."""

    def word(self, value: int) -> Any:
        """A constant as one word."""

    def add(self, a: Any, k: Any) -> Any: ...
    def subtract(self, a: Any, k: Any) -> Any: ...
    def multiply(self, a: Any, k: Any) -> Any: ...
    def multiply_high(self, a: Any, k: Any) -> Any:
        """The upper 32 bits of the 64-bit product."""

    def xor(self, a: Any, k: Any) -> Any: ...
    def minimum(self, a: Any, b: Any) -> Any: ...


class PythonWords:
    """Words are ints of Python."""

    def word(self, value: int) -> int:
        return value

    def add(self, a: int, k: int) -> int:
        return (a + k) & _MASK

    def subtract(self, a: int, k: int) -> int:
        return (a - k) & _MASK

    def multiply(self, a: int, k: int) -> int:
        return (a * k) & _MASK

    def multiply_high(self, a: int, k: int) -> int:
        return (a * k) >> 32

    def xor(self, a: int, k: int) -> int:
        return a ^ k

    def minimum(self, a: int, b: int) -> int:
        return min(a, b)


class TorchWords:
    """Words are int64 tensors of any device."""

    def word(self, value: int) -> int:
        return value

    def add(self, a: Any, k: Any) -> Any:
        return (a + k) & _MASK

    def subtract(self, a: Any, k: Any) -> Any:
        return (a - k) & _MASK

    def multiply(self, a: Any, k: Any) -> Any:
        # The product may exceed int64; it wraps, and its lower bits are right.
        return (a * k) & _MASK

    def multiply_high(self, a: Any, k: Any) -> Any:
        if isinstance(k, int) and k < 1 << 31:
            return (a * k) >> 32
        return (a * (k >> 16) + (a * (k & 0xFFFF) >> 16)) >> 16

    def xor(self, a: Any, k: Any) -> Any:
        return a ^ k

    def minimum(self, a: Any, b: Any) -> Any:
        import torch

        return torch.minimum(a, b)


class JaxWords:
    """Words are uint32 arrays of jax. Also for traced functions."""

    def word(self, value: Any) -> Any:
        import jax.numpy as jnp

        return jnp.uint32(value) if isinstance(value, int) else value

    def add(self, a: Any, k: Any) -> Any:
        return a + self.word(k)

    def subtract(self, a: Any, k: Any) -> Any:
        return a - self.word(k)

    def multiply(self, a: Any, k: Any) -> Any:
        return a * self.word(k)

    def multiply_high(self, a: Any, k: Any) -> Any:
        k = self.word(k)
        half, low = self.word(16), self.word(0xFFFF)
        a0, a1, k0, k1 = a & low, a >> half, k & low, k >> half
        cross0, cross1 = a0 * k1, a1 * k0
        middle = (a0 * k0 >> half) + (cross0 & low) + (cross1 & low)
        return a1 * k1 + (cross0 >> half) + (cross1 >> half) + (middle >> half)

    def xor(self, a: Any, k: Any) -> Any:
        return a ^ self.word(k)

    def minimum(self, a: Any, b: Any) -> Any:
        import jax.numpy as jnp

        return jnp.minimum(a, b)


PYTHON = PythonWords()


def philox(words: Words, counter: Any, key: Any) -> tuple[Any, Any, Any, Any]:
    """Return the block of Philox 4x32-10 at `counter` (4 words) under `key` (2 words).

    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the same
    as the engine's (penstock/base/philox.h).
    """
    c0, c1, c2, c3 = (words.word(c) for c in counter)
    k0, k1 = (words.word(k) for k in key)
    for _ in range(10):
        high0, low0 = words.multiply_high(c0, 0xD2511F53), words.multiply(c0, 0xD2511F53)
        high1, low1 = words.multiply_high(c2, 0xCD9E8D57), words.multiply(c2, 0xCD9E8D57)
        c0, c1 = words.xor(words.xor(high1, c1), k0), low1
        c2, c3 = words.xor(words.xor(high0, c3), k1), low0
        k0, k1 = words.add(k0, 0x9E3779B9), words.add(k1, 0xBB67AE85)
    return c0, c1, c2, c3


def halves(value: int) -> tuple[int, int]:
    """Return the lower and the upper word of a 64-bit number."""
    return value & _MASK, value >> 32 & _MASK


def derived_key(seed: int, epoch: int, use: int) -> tuple[int, int]:
    """Return the key of a use of (seed, epoch), as the engine's `derive_key`."""
    block = philox(PYTHON, (*halves(seed), *halves(epoch)), (use, 0x70656E73))
    return block[0], block[1]
