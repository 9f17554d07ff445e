"""Check the Markdown files: links and names in lists lead somewhere, Python examples are Python.

A README with a table of files names every file beside it, and every file of a folder that it has a
heading for (``## element/``): by its name, or, a header and its source, by what they share.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\| (file|module)\b", re.MULTILINE)
FOLDER = re.compile(r"^## (?:\[)?`?([\w/]+)/", re.MULTILINE)
NAME = re.compile(r"`(?:[\w./]*/)?(\w+)(?:\.[\w{},.]+)?`")


def faults(page: Path) -> list[str]:
    text = page.read_text()
    found = []
    for target in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        if "://" not in target and not (page.parent / target).exists():
            found.append(f"link to {target}, which is not there")
    for block in BLOCK.findall(text):
        try:
            compile(textwrap.dedent(block), str(page), "exec")
        except SyntaxError as error:
            found.append(f"example that is no Python: {error.msg}: {error.text}")
    return [f"{page.relative_to(ROOT)}: {fault}" for fault in found]


def unlisted(page: Path, files: list[Path]) -> list[str]:
    text = page.read_text()
    if page.name != "README.md" or not TABLE.search(text):
        return []
    folders = [page.parent, *(page.parent / folder for folder in FOLDER.findall(text))]
    named = {*NAME.findall(text), "README", "CMakeLists", "__init__"}
    return [
        f"{page.relative_to(ROOT)}: does not list {file.relative_to(page.parent)}"
        for file in files
        if file.parent in folders and file.name.split(".")[0] not in named
    ]


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).exists()]
    pages = [file for file in files if file.suffix == ".md"]
    found = [fault for page in pages for fault in (*faults(page), *unlisted(page, files))]
    front = (ROOT / "README.md").read_text()
    for page in sorted((ROOT / "docs").glob("*.md")):
        if f"(docs/{page.name})" not in front:
            found.append(f"README.md: does not link docs/{page.name}")
    print("\n".join(found) or f"{len(pages)} pages: links and examples are sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
