"""penstock.ray.report: one page about feeds of ranks, shards and relays on two nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import train

pytest.importorskip("ray")

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import ray_cluster
import ray_functions
from penstock.ray.report import Collected, Row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Page(HTMLParser):
    """The texts of a page's cells by section, and the pages inside it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.inner: list[str] = []
        self.tags: list[str] = []
        self.headline = ""
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.section.append([])
        if tag == "iframe":
            self.inner.append(dict(attributes)["srcdoc"] or "")

    def handle_data(self, text: str) -> None:
        tag = self.tags[-1] if self.tags else ""
        if not text.strip():
            return
        if tag == "h1":
            self.headline = text
        elif tag == "h2":
            self.section = self.tables.setdefault(text, [])
        elif tag in ("td", "th"):
            self.section[-1].append(text)

    def column(self, section: str, name: str) -> list[str]:
        heads, *rows = self.tables[section]
        return [row[heads.index(name)] for row in rows]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.cluster() as made:
        yield made


def run(folder: Path) -> None:
    DataParallelTrainer(
        ray_functions.feed_epoch,
        train_loop_config={"folder": str(folder), "part": "epoch", "rows": 120},
        scaling_config=ray.train.ScalingConfig(
            num_workers=2, placement_strategy="SPREAD", resources_per_worker={"CPU": 1}
        ),
        run_config=ray.train.RunConfig(name="run", storage_path=str(folder / "runs")),
    ).fit()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_a_shard_has_the_row_of_its_newest_leader() -> None:
    def row(host: str, epoch: int, pushes: int, seen: float) -> Row:
        tags = {"server": "main", "shard": "0"}
        return Row("server", host, 7, tags, {"pushes": pushes, "epoch": epoch}, seen)

    collected = Collected()
    for each in (row("a", 1, 10, 1.0), row("b", 2, 12, 3.0), row("a", 1, 11, 3.5)):
        collected.keep(each)
    assert [(each.host, each.counts["pushes"]) for each in collected.read()[0]] == [("b", 12)]
    collected.keep(row("b", 2, 20, 5.0))
    assert [each.counts["pushes"] for each in collected.read()[0]] == [20]
    collected.keep(row("c", 1, 1, 60.0))  # of another server with this name
    assert [each.host for each in collected.read()[0]] == ["c"]
    for pid in (1, 2):
        collected.keep(Row("feed", "a", pid, {"rank": "0"}, {}, 1.0))
    assert len(collected.read()[0]) == 3


def test_one_page_has_the_parts_of_all_hosts(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    with penstock.ray.report(path) as report:
        assert Page(path).headline == "No part has sent counts yet."
        with (
            pytest.raises(penstock.InvalidArgument, match="writes a report already"),
            penstock.ray.report(tmp_path / "other.html"),
        ):
            pass
        run(tmp_path)
        server = penstock.ray.parameter_server(
            train.Parameters({"w": (1000,)}), train.SGD(1.0), shards=2
        )
        with server.connect() as client:
            client.gradients["w"][:] = 1
            client.push(client.gradients)
        del client

        def counted() -> bool:
            report.write()
            found = Page(path)
            shards = "Shards of parameter servers"
            return shards in found.tables and found.column(shards, "pushes") == ["1", "1"]

        until(counted)
    server.close(save=False)
    found = Page(path)
    assert found.headline == "2 feeds, 2 shards of parameter servers on 2 hosts"
    assert sorted(found.column("Feeds", "host")) == list(ray_cluster.ADDRESSES)
    assert found.column("Feeds", "rank") == ["0", "1"]
    assert found.column("Feeds", "samples") == ["60", "60"]
    assert found.column("Feeds", "delivered") == ["15", "15"]
    assert len(found.inner) == 2  # what Loader.report writes
    assert all(re.search(r'"delivered": ?15\b', page) for page in found.inner)
    with pytest.raises(ValueError, match="report"):
        ray.get_actor(f"report-{ray.get_runtime_context().get_job_id()}", "penstock")


def test_an_exception_ends_the_report_and_a_bad_path_begins_none(
    cluster: Any, tmp_path: Path
) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nowhere"),
        penstock.ray.report(tmp_path / "nowhere" / "run.html"),
    ):
        pass
    for _ in range(2):  # the second one begins after the first
        with pytest.raises(KeyError), penstock.ray.report(tmp_path / "run.html"):
            raise KeyError
    assert Page(tmp_path / "run.html").headline == "No part has sent counts yet."
