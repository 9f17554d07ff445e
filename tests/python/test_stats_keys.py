"""Every key of ``stats()`` is in docs/loader.md and in the docstring, and there are no others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import penstock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "loader.md"


class Samples:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.full(3, index)


def documented(heading: str) -> set[str]:
    """The keys in the first column of the table whose header begins with `heading`."""
    rows = PAGE.read_text().split(f"| {heading} | what |\n")[1].split("\n\n")[0].splitlines()
    return {key for row in rows[1:] for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def stats_of(source, **options):
    with penstock.Loader(source, **options) as feed:
        for _ in feed:
            pass
        return feed.stats()


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (Samples(), {"batch_size": 4, "workers": 2}),
        (Samples(), {"workers": 0}),
        (penstock.Dataset.range(8).filter(lambda x: x > 2).batch(2), {"workers": 0}),
    ],
)
def test_documented_keys_are_the_keys(source, options):
    stats = stats_of(source, **options)
    assert documented("key") == stats.keys()
    for worker in stats["workers"]:
        assert documented("key of a worker") == worker.keys()
    for reasons in (stats["copies"], stats["bytes_copied"]):
        assert documented("reason to copy") == reasons.keys()
    stages = [*stats["stages"], *stats["stream_stages"]]
    assert stages
    assert all(stage.keys() == {"stage", "ns", "rows"} for stage in stages)


def test_the_docstring_names_every_key():
    named = set(re.findall(r"``(\w+)``", penstock.Loader.stats.__doc__))
    assert named == documented("key") | {"stage", "ns", "rows"}
