"""Lines that are redrawn in place on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO


class Screen:
    """Shows lines; on a terminal, in the place of those that it showed before.

    Threads: one at a time.

    Parameters
    ----------
    out : file
    redraw : bool
        False: lines are printed one after the other, also on a terminal.
    """

    def __init__(self, out: TextIO, redraw: bool = True) -> None:
        self._out, self.redraws = out, redraw and out.isatty()
        self._shown = 0

    def show(self, lines: Sequence[str]) -> None:
        if not self.redraws:
            print("\n".join(lines), file=self._out, flush=True)
            return
        columns, rows = self._size()
        # A line that the terminal breaks, or that scrolls, could not be replaced.
        lines = [line[: columns - 1] for line in lines[: rows - 1]]
        up = f"\x1b[{self._shown}F" if self._shown else ""
        self._out.write(up + "\x1b[J" + "".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._shown = len(lines)

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return columns or 80, rows or 24  # 0: the size is not known
