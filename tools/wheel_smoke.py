"""Checks an installed penstock: every kind of worker makes the same batches, in order."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

import penstock


class Squares:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> np.ndarray:
        if index >= len(self):
            raise IndexError(index)
        return np.full((64, 64), index**2, dtype="float32")


def main() -> None:
    expected = [index**2 for index in range(20)]
    for workers, use_multiprocessing in ((0, False), (2, False), (2, True)):
        with penstock.Loader(
            Squares(), workers=workers, use_multiprocessing=use_multiprocessing
        ) as feed:
            values = [int(batch[0, 0]) for batch in feed]
        if values != expected:
            raise SystemExit(f"workers={workers}, {use_multiprocessing=}: {values}")
    print(f"penstock {version('penstock')} works from {penstock.__file__}")


if __name__ == "__main__":
    main()
