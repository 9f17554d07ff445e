"""A reference for keyed random numbers, from the papers and docs/design/pipeline.md."""

from __future__ import annotations

from collections.abc import Iterator

MASK = 0xFFFFFFFF
ORDER, BLOCKS, WINDOW, TAIL, BUFFER, SAMPLE = 1, 3, 4, 5, 6, 7  # uses of a derived key


def philox(counter, key):
    """Philox 4x32-10, as in the paper."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def halves(number: int) -> tuple[int, int]:
    return number & MASK, number >> 32


def words_at(seed, epoch, index, operation, count):
    key = philox((*halves(seed), *halves(epoch)), (0, 0x70656E73))[:2]
    words = []
    for block in range(-(-count // 4)):
        words += philox((block, operation, *halves(index)), key)
    return words[:count]


def derived(seed: int, epoch: int, use: int) -> int:
    low, high = philox((*halves(seed), *halves(epoch)), (use, 0x70656E73))[:2]
    return low | high << 32


def draw(key: int, number: int) -> int:
    """The first 64 bits of a draw."""
    low, high = words_at(key, 0, number, 0, 2)
    return low | high << 32


def below(key: int, number: int, n: int) -> int:
    """A draw in [0, n) by Lemire's method. (The probability of a second draw is n / 2^64.)"""
    return draw(key, number) * n >> 64


def permutation(length: int, key: int) -> list[int]:
    """A permutation of up to 256 elements: Fisher and Yates."""
    assert length <= 256
    words: list[int] = []
    for block in range(-(-length // 4)):
        words += philox((block, 0, *halves(length)), halves(key))
    order = list(range(length))
    for last in range(length - 1, 0, -1):
        other = words[last] * (last + 1) >> 32
        order[last], order[other] = order[other], order[last]
    return order


def block_order(length: int, seed: int, epoch: int, block: int, window: int) -> Iterator[int]:
    """Blocks in random order, the short one at a random place, mixed within windows."""
    block = min(block, max(length, 1))
    full = length // block
    blocks = [
        range(first * block, (first + 1) * block)
        for first in permutation(full, derived(seed, epoch, BLOCKS))
    ]
    if length % block:
        blocks.insert(derived(seed, epoch, TAIL) * (full + 1) >> 64, range(full * block, length))
    window = min(window, max(len(blocks), 1))
    for number, first in enumerate(range(0, len(blocks), window)):
        inside = [place for each in blocks[first : first + window] for place in each]
        key = derived(derived(seed, epoch, WINDOW), number, WINDOW)
        yield from (inside[place] for place in permutation(len(inside), key))
