"""The tutorial, executed by Jupyter's kernel, prints its stored output.

``python tests/python/test_tutorial.py`` executes it and stores the output.
"""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"


def executed(folder):
    """The notebook after a run of all cells in `folder`."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return notebook


def printed(notebook):
    """The printed output of each code cell, without logs, such as a worker's number."""
    return [
        "".join(output["text"] for output in cell["outputs"] if output.get("name") == "stdout")
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.slow
def test_the_tutorial_prints_what_stands_in_it(tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    assert printed(executed(tmp_path)) == printed(nbformat.read(NOTEBOOK, as_version=4))


def write():
    import nbformat

    notebook = executed(NOTEBOOK.parent)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            for output in cell["outputs"]:
                output.pop("execution_count", None)
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    write()
