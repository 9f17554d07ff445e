"""Hooks of mkdocs for the site of `make docs`.

- Runs Doxygen over the engine's headers; its pages are part of the site, in ``cpp/``.
- Adds pages that are elsewhere in the tree or generated here: the reference of each public module
  from its ``__all__``, the list of C++ headers, the tutorial from its notebook, the CHANGELOG and
  the README of each folder.
- Points links at these pages. A link to any other file of the tree becomes plain text.
- Raises an error for a page that fetches anything from the network.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOXYGEN = ROOT / "build" / "doxygen"
MODULES = {
    "penstock": "python/penstock/__init__.py",
    "penstock.image": "python/penstock/image/__init__.py",
    "penstock.device": "python/penstock/device/__init__.py",
    "penstock.train": "python/penstock/train/__init__.py",
    "penstock.torch": "python/penstock/torch/__init__.py",
    "penstock.keras": "python/penstock/keras/__init__.py",
    "penstock.jax": "python/penstock/jax/__init__.py",
    "penstock.ray": "python/penstock/ray/__init__.py",
    "penstock.remote": "python/penstock/remote/__init__.py",
    "penstock.errors": "python/penstock/errors.py",
}
# Names with a page of their own.
ELSEWHERE = {"penstock.Dataset": "dataset", "penstock.errors": "errors"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FETCH = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//')
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DOCTEST = re.compile(r"(?:^(?:>>>|\.\.\.).*\n)+", re.MULTILINE)
HIDDEN = re.compile(r"^<!-- python\n.*?^-->\n", re.MULTILINE | re.DOTALL)

# Places of files in the site: path from the tree's root -> path in the site.
places: dict[str, str] = {}
# The folder that a page's links are relative to: path in the site -> path from the tree's root.
origins: dict[str, str] = {}


def on_files(files: Any, config: Any) -> Any:
    places.clear()
    origins.clear()
    for file in list(files):
        places[f"docs/{file.src_uri}"] = file.src_uri
        origins[file.src_uri] = os.path.dirname(f"docs/{file.src_uri}")

    def add(uri: str, text: str, origin: str = "") -> None:
        """Add a page; the links of a generated page are relative to ``docs``."""
        origin = origin or f"docs/{uri}"
        files.append(File.generated(config, uri, content=text))
        origins[uri] = os.path.dirname(origin)
        places[origin] = uri

    add("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text(), "CHANGELOG.md")
    notebook = "docs/tutorial.ipynb"
    add("tutorial.md", page_of_notebook(ROOT / notebook), notebook)
    places["README.md"] = "index.md"
    for readme in tracked("*/README.md"):
        add(f"source/{readme}", (ROOT / readme).read_text(), readme)
        places[os.path.dirname(readme)] = f"source/{readme}"
    add_cpp(files, config)
    add("reference/cpp.md", cpp_page())
    add("reference/dataset.md", "# penstock.Dataset\n\n::: penstock.Dataset\n")
    for module, source in MODULES.items():
        page = module.partition(".")[2] or module
        add(f"reference/{page}.md", reference_of(module, ROOT / source))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    markdown = HIDDEN.sub("", markdown)
    if page.file.src_uri.startswith(("design/", "source/")):
        page.meta["search"] = {"boost": 0.5}  # users' pages are found first
    folder = origins[page.file.src_uri]
    here = os.path.dirname(page.file.src_uri)

    def pointed(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        place = places.get(os.path.normpath(os.path.join(folder, target)))
        if place is None:
            return text
        return f"{image}[{text}]({os.path.relpath(place, here or '.')}{anchor or ''})"

    kept: list[str] = []  # blocks of code are not changed

    def put_aside(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    markdown = LINK.sub(pointed, FENCE.sub(put_aside, markdown))
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], markdown)


def on_post_build(config: Any) -> None:
    """Raise an error for a page that fetches anything from the network."""
    fetching = [
        str(page)
        for page in Path(config.site_dir).rglob("*.html")
        if FETCH.search(page.read_text(encoding="utf-8"))
    ]
    if fetching:
        raise PluginError(f"pages that need the network: {', '.join(fetching)}")


def tracked(pattern: str) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def page_of_notebook(path: Path) -> str:
    """Text cells unchanged, code cells with their output."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        printed = "".join(printed_by(output) for output in cell["outputs"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def printed_by(output: dict[str, Any]) -> str:
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", []))


def reference_of(module: str, source: Path) -> str:
    """A directive for each public name of a module."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names: list[str] = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    )
    modules = {name.partition(".")[2] for name in MODULES}
    parts = [f"# {module}", DOCTEST.sub(r"```pycon\n\g<0>```\n", f"{ast.get_docstring(tree)}\n")]
    for name in names:
        full = f"{module}.{name}"
        if full in ELSEWHERE:
            parts.append(f"## {name}\n\nSee [{full}]({ELSEWHERE[full]}.md).")
        elif module == "penstock" and name in modules:
            parts.append(f"## {name}\n\nA module: [{full}]({name}.md).")
        elif not name.startswith("__") and not is_error(module, name):
            parts.append(f"::: {full}")
    return "\n\n".join(parts) + "\n"


def is_error(module: str, name: str) -> bool:
    """Errors are also in `penstock`, and are described in `penstock.errors`."""
    errors = ROOT / MODULES["penstock.errors"]
    return module == "penstock" and f"class {name}(" in errors.read_text(encoding="utf-8")


def add_cpp(files: Any, config: Any) -> None:
    DOXYGEN.mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen", "tools/site/Doxyfile"], cwd=ROOT, check=True)
    for path in sorted((DOXYGEN / "cpp").rglob("*")):
        if path.is_file():
            uri = path.relative_to(DOXYGEN).as_posix()
            files.append(File(uri, str(DOXYGEN), config.site_dir, use_directory_urls=False))
    for compound in ElementTree.parse(DOXYGEN / "penstock.tag").iter("compound"):
        if compound.get("kind") == "file":
            folder = os.path.relpath(compound.findtext("path", ""), ROOT)
            page = compound.findtext("filename", "").removesuffix(".html")
            header = os.path.normpath(os.path.join(folder, compound.findtext("name", "")))
            places[header] = f"cpp/{page}.html"
    places["penstock/classes"] = "cpp/annotated.html"
    places["penstock/files"] = "cpp/files.html"


def cpp_page() -> str:
    """The headers that `penstock/penstock.h` includes, each with its first sentence."""
    included = re.findall(r'#include "(.*)"', (ROOT / "penstock/penstock.h").read_text())
    rows = []
    for header in included:
        text = (ROOT / header).read_text(encoding="utf-8")
        names = dict.fromkeys(re.findall(r"^(?:class|struct) (\w+)(?: \w+)? [:{]", text, re.M))
        rows.append(
            f"| [`{header}`](../../{header}) | {', '.join(f'`{name}`' for name in names)} |"
        )
    return "\n".join(
        [
            "# C++",
            "",
            "[From C++](../cpp.md) is the guide. Doxygen makes the reference of all headers: "
            "[classes](../../penstock/classes), [files](../../penstock/files). "
            "`#include <penstock/penstock.h>` includes these:",
            "",
            "| header | declares |",
            "|---|---|",
            *rows,
            "",
        ]
    )
