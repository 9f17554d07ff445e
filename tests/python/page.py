"""The Python of a Markdown page, as one program in the page's order.

Readers see the fenced blocks of python. Code for the test only, such as a comparison of two
columns, is in a comment that begins with ``<!-- python``, or in a file of parts that are inserted
between the blocks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BEGIN = re.compile(r"^(?:```|<!-- )python$")
END = re.compile(r"^(?:```|-->)$")
PART = re.compile(r"^# %%.*\n", re.MULTILINE)


def program_of(page: Path) -> str:
    """The code with the page's line numbers: all other lines are empty."""
    lines, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if inside and END.match(line):
            inside = False
        lines.append(line if inside else "")
        if BEGIN.match(line):
            inside = True
    assert not inside, f"{page}: a block of Python without an end"
    return "\n".join(lines) + "\n"


def program_with(page: Path, parts: Path) -> str:
    """The code with a part before each block, and the last part at the end."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    between = PART.split(parts.read_text(encoding="utf-8"))
    assert len(between) == len(blocks) + 1, f"{parts} has not one part more than {page} has blocks"
    return "".join(f"{part}\n{block}\n" for part, block in zip(between, [*blocks, ""], strict=True))


def run_program(text: str, name: str, folder: Path, timeout: float) -> None:
    """Run it as a script in `folder`."""
    script = folder / f"{name}.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script.name], cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
