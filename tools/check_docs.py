"""Check the Markdown files: links and names in lists lead somewhere, Python examples are Python.

The classes that docs/design/walk.md names are declared in the tree, and the members that any page
names as ``Class::member``. A README with a table of files
names every file beside it, and every file of a folder for which it has a heading (``## element/``):
by its name, or a header and its source by their common stem.
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
CLASS = re.compile(r"^ *(?:class|struct|using) (?:alignas\([^)]*\) )?(\w+)", re.MULTILINE)
COMMENT = re.compile(r"//.*")
WORD = re.compile(r"\w+")
MEMBER = re.compile(r"`(?:\w+::)+(\w+)[^`]*`")
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


def unknown_members(page: Path, words: set[str]) -> list[str]:
    return [
        f"{page.relative_to(ROOT)}: names a member {name}, which is not in the tree"
        for name in sorted(set(MEMBER.findall(page.read_text())) - words)
    ]


def undeclared(page: Path, files: list[Path]) -> list[str]:
    """Names of classes on a page that no header, binding or module declares."""
    code = [file.read_text() for file in files if file.suffix in (".h", ".py")]
    declared = {name for text in code for name in CLASS.findall(text)}
    return [
        f"{page.relative_to(ROOT)}: names {name}, which is no class of the tree"
        for name in sorted(set(re.findall(r"`([A-Z]\w+)`", page.read_text())) - declared)
    ]


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).exists()]
    pages = [file for file in files if file.suffix == ".md"]
    found = [fault for page in pages for fault in (*faults(page), *unlisted(page, files))]
    docs = ROOT / "docs"
    sources = [file for file in files if file.relative_to(ROOT).parts[0] in ("penstock", "python")]
    found += undeclared(docs / "design" / "walk.md", sources)
    code = [file for file in files if file.suffix in (".h", ".cc")]
    words = {word for file in code for word in WORD.findall(COMMENT.sub("", file.read_text()))}
    for page in pages:
        if page.name != "CHANGELOG.md":
            found += unknown_members(page, words)
    index = (docs / "index.md").read_text()
    for page in sorted(docs.rglob("*.md")):
        name = page.relative_to(docs).as_posix()
        if f"({name})" not in index and name != "index.md":
            found.append(f"docs/index.md: does not link {name}")
    print("\n".join(found) or f"{len(pages)} pages: links and examples are sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
