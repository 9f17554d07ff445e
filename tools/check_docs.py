"""Check the Markdown files: links inside the tree lead somewhere, Python examples are Python."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


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


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    pages = [ROOT / name for name in listing.stdout.splitlines()]
    found = [fault for page in pages if page.exists() for fault in faults(page)]
    print("\n".join(found) or f"{len(pages)} pages: links and examples are sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
