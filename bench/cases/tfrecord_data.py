"""The files of the TFRecord cases, and the program that measures the machine's limit with them.

200,000 tf.Examples of 580 bytes each with their frames, in 8 files: record i, in file i mod 8,
has the features label (int64: i), x (64 floats) and raw (256 bytes), which `i` alone determines.
"""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from harness import Figures, Size, expect, once

BATCH, FILES, FLOATS, RAW = 256, 8, 64, 256
ROOT = Path(__file__).resolve().parents[2]
PROGRAM_SOURCES = ("bench/dataset_limits.cc", "penstock/io/crc32c.cc")


def x_of(numbers: Any) -> Any:
    """The floats of these records: (records, 64)."""
    numbers = np.asarray(numbers, np.int64)[:, None]
    return ((numbers * 31 + np.arange(FLOATS) * 17) % 1009).astype(np.float32) / 1009


def raw_of(numbers: Any) -> Any:
    """The byte strings of these records: (records, 256)."""
    numbers = np.asarray(numbers, np.int64)[:, None]
    return ((numbers * 7 + np.arange(RAW) * 3) & 255).astype(np.uint8)


# ---- frames, many at a time


@functools.cache
def crc_table() -> Any:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


def masked_crcs(rows: Any) -> Any:
    """CRC-32C of each row of bytes, as TFRecord masks it: (rows, 4) bytes."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = crc_table()[(crc ^ column) & 255] ^ (crc >> 8)
    crc = ~crc
    crc = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    return crc.astype("<u4").view(np.uint8).reshape(-1, 4)


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def entry(name: str, kind: int, values: bytes) -> bytes:
    """One feature of an Example; kind 1: bytes, 2: floats, 3: integers."""
    return field(1, field(1, name.encode()) + field(2, field(kind, field(1, values))))


def frames_of(numbers: Any) -> Any:
    """The frames of records whose numbers have the same number of bytes: (records, bytes)."""
    digits = len(varint(int(numbers[-1])))
    # Bytes that occur nowhere else in it.
    places = {"label": b"\xfc" * digits, "raw": b"\xfd" * RAW, "x": b"\xfe" * (4 * FLOATS)}
    kinds = {"label": 3, "raw": 1, "x": 2}
    features = b"".join(entry(name, kinds[name], places[name]) for name in places)
    example = field(1, features)
    rows = np.empty((len(numbers), len(example) + 16), np.uint8)
    rows[:, :8] = np.frombuffer(struct.pack("<Q", len(example)), np.uint8)
    rows[:, 8:12] = masked_crcs(rows[:1, :8])
    payload = rows[:, 12:-4]
    payload[:] = np.frombuffer(example, np.uint8)
    shifts = 7 * np.arange(digits)
    label = (np.asarray(numbers)[:, None] >> shifts & 127).astype(np.uint8)
    label[:, :-1] |= 128
    values = {"label": label, "raw": raw_of(numbers), "x": x_of(numbers).view(np.uint8)}
    for name, place in places.items():
        at = example.index(place)
        payload[:, at : at + len(place)] = values[name]
    rows[:, -4:] = masked_crcs(payload)
    return rows


def file_names(size: Size) -> list[str]:
    return [str(size.path(f"examples-{size.count}-{k}-of-{FILES}.tfrecord")) for k in range(FILES)]


def write_file(path: Path, numbers: Any) -> None:
    with open(path, "wb") as file:
        for digits in range(10):
            some = numbers[(numbers >> 7 * digits > 0) | (digits == 0)]
            some = some[some >> 7 * (digits + 1) == 0]
            if len(some):
                file.write(frames_of(some).tobytes())


# ---- the program


def program(size: Size) -> Path:
    return size.path("dataset_limits")


def build_program(size: Size) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return
    sources = [str(ROOT / source) for source in PROGRAM_SOURCES]
    newest = max(Path(source).stat().st_mtime for source in sources)
    if program(size).exists() and program(size).stat().st_mtime < newest:
        program(size).unlink()

    def build(part: Path) -> None:
        flags = ["-std=c++20", "-O3", "-march=native", f"-I{ROOT}", "-pthread"]
        subprocess.run(
            [
                compiler,
                *flags,
                *sources,
                "-lisal",
                "-lsodium",
                "-lssl",
                "-lcrypto",
                "-o",
                str(part),
            ],
            check=True,
        )

    once(program(size), build)


def limit(size: Size, mode: str, threads: int, *rest: str) -> tuple[Figures, float]:
    """Items a second of the program's best round, and the sum that it made."""
    if not program(size).exists():
        raise ImportError("no C++ compiler")
    said = subprocess.run(
        [str(program(size)), mode, str(threads), *rest], capture_output=True, text=True, check=True
    ).stdout.split()
    count, seconds, total = (float(word) for word in said)
    expect(count == size.count, f"{count:.0f} came, not {size.count}")
    return {"rate": count / seconds}, total


def prepare(size: Size) -> None:
    numbers = np.arange(size.count)
    for k, name in enumerate(file_names(size)):
        mine = numbers[k::FILES]
        once(Path(name), lambda part, mine=mine: write_file(part, mine))  # type: ignore[misc]
    build_program(size)
