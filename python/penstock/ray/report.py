"""One page about the parts of penstock on all hosts of a Ray cluster: feeds, servers, relays."""

from __future__ import annotations

import html
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument
from .names import NAMESPACE

if TYPE_CHECKING:
    from ..loader import Loader

PAGES = 16  # of the feeds that waited longest
_LOOK = 5.0  # seconds between two times that a process looks for the report of its job
_ARRIVES = 2.0  # seconds that a page may take to the actor
_STEP = 60.0  # seconds that the actor may take to start, or to answer
_FORGOTTEN = 30.0  # seconds without a row of a shard: another server may have its name now
_TITLES = {
    "feed": "Feeds",
    "server": "Shards of parameter servers",
    "relay": "Relayed weights",
    "channel": "Relayed channels",
}


@dataclass
class Row:
    """The last counts of one part."""

    part: str
    host: str
    pid: int
    tags: dict[str, str]
    counts: dict[str, Any]
    seen: float  # seconds since the epoch


@dataclass
class FeedPage:
    """What `Loader.report` writes, compressed."""

    title: str
    verdict: str
    wait_share: float
    html: bytes


class Collected:
    """The actor: keeps the last counts of each part, and the pages of feeds that waited longest."""

    def __init__(self) -> None:
        self.rows: dict[Any, Row] = {}
        self.pages: dict[Any, FeedPage] = {}

    def keep(self, row: Row) -> None:
        key: tuple[Any, ...] = (row.part, tuple(row.tags.items()))
        if row.part == "server":
            # One process leads a shard: the one with the newest epoch. Rows may arrive late.
            before = self.rows.get(key)
            if (
                before is not None
                and before.counts["epoch"] > row.counts["epoch"]
                and row.seen - before.seen < _FORGOTTEN
            ):
                return
        else:
            key = (*key, row.host, row.pid)
        self.rows[key] = row

    def keep_page(self, key: Any, page: FeedPage) -> None:
        self.pages[key] = page
        if len(self.pages) > PAGES:
            del self.pages[min(self.pages, key=lambda each: self.pages[each].wait_share)]

    def read(self) -> tuple[list[Row], list[FeedPage]]:
        return list(self.rows.values()), list(self.pages.values())


class Report:
    """The page of `report`, for a ``with`` block of the driver. Threads: one at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._actor: Any = None

    def write(self) -> None:
        """Write the page as it is now. Raises `OSError`: the file could not be written."""
        import ray

        rows, pages = ray.get(self._actor.read.remote(), timeout=_STEP)
        page = page_of(rows, pages, time.time())
        self._path.write_text(page, encoding="utf-8")

    def __enter__(self) -> Report:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not ray.is_initialized():
            ray.init()
        self._path.write_text(page_of([], [], time.time()), encoding="utf-8")
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        try:
            self._actor = (
                ray.remote(Collected)
                .options(name=_name(), namespace=NAMESPACE, num_cpus=0, scheduling_strategy=here)
                .remote()
            )
        except ValueError:
            raise InvalidArgument(
                "this driver writes a report already: leave its `with` block first",
                "penstock.ray.report",
            ) from None
        ray.get(self._actor.read.remote(), timeout=_STEP)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import ray

        try:
            self.write()
        finally:
            ray.kill(self._actor)
            self._actor = None


def report(path: str | os.PathLike[str]) -> Report:
    """Write one HTML page about all hosts, from what happens in a ``with`` block.

    ::

        with penstock.ray.report("run.html"):
            trainer.fit()

    The page has the counts that Ray's metrics get: of the feeds of all ranks, the shards of
    parameter servers, relays and channels that this driver's job started. For the 16 feeds that
    waited longest it has the whole page of `Loader.report`. Each process sends its counts every
    2 s, and a feed its page after each epoch, when it is closed, and at growing intervals.

    Parameters
    ----------
    path : path
        The file, which is written when the block begins and when it ends; an exception ends it,
        too. ``report.write()`` writes it in between.

    Returns
    -------
    Report
        For ``with``. It starts an actor without a processor of its own on the driver's node.

    Raises
    ------
    InvalidArgument
        On entry: a report of this driver has begun and not ended.
    OSError
        The file could not be written.
    """
    return Report(path)


# ---- what the processes send


class _Finder:
    """The report of this process's job, if there is one. Threads: any; they find the same."""

    def __init__(self) -> None:
        self._found: Any = None
        self._looked = -_LOOK

    def find(self) -> Any:
        import ray

        if time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            try:
                self._found = ray.get_actor(_name(), NAMESPACE)
            except ValueError:  # there is none
                self._found = None
        return self._found


_finder = _Finder()


def send(part: str, tags: Mapping[str, str], counts: Mapping[str, Any]) -> None:
    """Send counts to the report, if there is one."""
    if (to := _finder.find()) is not None:
        to.keep.remote(Row(part, _host(), os.getpid(), dict(tags), dict(counts), time.time()))


def send_page(feed: Loader, tags: Mapping[str, str]) -> None:
    """Send a feed's own page to the report, if there is one, and wait until it has arrived."""
    import ray

    if (to := _finder.find()) is None:
        return
    analysis = feed.analysis()
    title = ", ".join(f"{key} {value}" for key, value in tags.items())
    page = FeedPage(
        f"{title} on {_host()}",
        analysis["verdict"],
        analysis["wait_share"],
        zlib.compress(feed._page().encode()),
    )
    sent = to.keep_page.remote((_host(), os.getpid(), tuple(tags.items())), page)
    ray.wait([sent], timeout=_ARRIVES)  # this process may end soon


def _host() -> str:
    import ray

    address: str = ray.util.get_node_ip_address()
    return address


def _name() -> str:
    import ray

    return f"report-{ray.get_runtime_context().get_job_id()}"


# ---- the page

_STYLE = """
:root { --page: #f5f6f4; --card: #fff; --ink: #1d2528; --soft: #5d6a6e; --line: #e1e5e3; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14191b; --card: #1c2326; --ink: #e5eae8; --soft: #97a5a8; --line: #2d373a; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 25px; font-weight: 600; } h2 { font-size: 15px; font-weight: 600; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 6px 20px 16px; margin-bottom: 18px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 400; font-size: 13px; }
th.number, td.number { text-align: right; }
summary { cursor: pointer; padding: 4px 0; }
summary span { color: var(--soft); margin-left: 8px; }
iframe { width: 100%; height: 80vh; border: 1px solid var(--line); border-radius: 6px; }
"""


def page_of(rows: list[Row], pages: list[FeedPage], now: float) -> str:
    """The page. `now`: seconds since the epoch."""
    parts = [part for part in _TITLES if any(row.part == part for row in rows)]
    hosts = {row.host for row in rows}
    head = "No part has sent counts yet."
    if rows:
        counts = [
            f"{sum(row.part == part for row in rows)} {_TITLES[part].lower()}" for part in parts
        ]
        head = f"{', '.join(counts)} on {len(hosts)} host{'s' if len(hosts) != 1 else ''}"
    body = [f"<h1>{html.escape(head)}</h1>"]
    for part in parts:
        body.append(f"<section><h2>{_TITLES[part]}</h2>")
        body.append(_table([row for row in rows if row.part == part], now))
        body.append("</section>")
    if pages:
        body.append("<section><h2>The feeds that waited longest</h2>")
        body += map(_embedded, sorted(pages, key=lambda page: -page.wait_share))
        body.append("</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>penstock on {len(hosts)} hosts</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body><main>\n{chr(10).join(body)}\n</main></body>\n</html>\n"
    )


def _table(rows: list[Row], now: float) -> str:
    tags = list(dict.fromkeys(key for row in rows for key in row.tags))
    counts = list(dict.fromkeys(key for row in rows for key in row.counts))
    names = ["host", "process", *tags], [*counts, "seconds ago"]
    lines = [
        "".join(f"<th>{html.escape(name)}</th>" for name in names[0])
        + "".join(f'<th class="number">{name.replace("_", " ")}</th>' for name in names[1])
    ]
    for row in sorted(rows, key=lambda row: (*row.tags.values(), row.host, row.pid)):
        texts = [row.host, str(row.pid), *(row.tags.get(key, "") for key in tags)]
        numbers = [*(row.counts.get(key) for key in counts), round(max(now - row.seen, 0))]
        lines.append(
            "".join(f"<td>{html.escape(text)}</td>" for text in texts)
            + "".join(f'<td class="number">{_number(number)}</td>' for number in numbers)
        )
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _embedded(page: FeedPage) -> str:
    inner = html.escape(zlib.decompress(page.html).decode(), quote=True)
    return (
        f"<details><summary>{html.escape(page.title)}<span>{html.escape(page.verdict)}</span>"
        f'</summary><iframe loading="lazy" title="{html.escape(page.title)}" srcdoc="{inner}">'
        "</iframe></details>"
    )
