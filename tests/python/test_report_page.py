"""The report page, opened in a real browser: tests check the drawing, not the text."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import train

pytestmark = pytest.mark.timeout(120)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOSTILE = (
    "</script><script>document.title = 'broken out'</script><!-- <img src=x> \u2028 & {{data}}"
)
WORKERS = 2
BATCHES = 40

# Before everything else in the page: records all errors.
LISTENER = """<script>
window.trouble = [];
const say = (what) => window.trouble.push(String(what));
window.addEventListener('error',
    (event) => say(event.message || 'load: ' + event.target.outerHTML), true);
window.addEventListener('unhandledrejection', (event) => say(event.reason));
window.addEventListener('securitypolicyviolation',
    (event) => say('refused: ' + event.blockedURI));
const error = console.error;
// Frames are drawn when the browser pleases, but the budget of virtual time ends for certain.
window.requestAnimationFrame = (draw) => setTimeout(draw, 0);
console.error = (...what) => { say(what.join(' ')); error(...what); };
</script>"""

# After everything else: measures the visible page. A lane's paint is the share of its pixels that
# differ from the lane's background.
PROBE = """<script>
window.addEventListener('load', () => setTimeout(() => {
  const texts = (selector) => Array.from(document.querySelectorAll(selector), (e) => e.textContent);
  const canvas = document.getElementById('canvas');
  const ratio = canvas.width / canvas.clientWidth;
  const top = canvas.getBoundingClientRect().top;
  const painted = Array.from(document.querySelectorAll('#lanes li'), (label) => {
    const box = label.getBoundingClientRect();
    const pixels = canvas.getContext('2d').getImageData(0, Math.round((box.top - top + 1) * ratio),
        canvas.width, Math.round((box.height - 2) * ratio)).data;
    const count = {};
    for (let i = 0; i < pixels.length; i += 4) {
      const colour = pixels.slice(i, i + 4).join();
      count[colour] = (count[colour] || 0) + 1;
    }
    const lane = getComputedStyle(document.documentElement).getPropertyValue('--lane').trim();
    const parts = [1, 3, 5].map((at) => parseInt(lane.slice(at, at + 2), 16));
    const background = parts.concat(255).join();
    return 1 - (count[background] || 0) * 4 / pixels.length;
  });
  const model = document.querySelector('#lanes li').getBoundingClientRect();
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent('pointermove',
      {clientX: box.left + box.width / 2, clientY: model.top + model.height / 2}));
  const seen = {
    ready: document.documentElement.dataset.ready === 'yes',
    title: document.title,
    verdict: document.getElementById('verdict').textContent,
    figures: Object.fromEntries(Array.from(document.querySelectorAll('#figures div'),
        (box) => [box.querySelector('dt').textContent, box.querySelector('dd').firstChild.data])),
    lanes: texts('#lanes li'),
    painted: painted,
    events: Number(canvas.dataset.events),
    legend: texts('#legend li'),
    stages: texts('#stages tbody th[scope=row]'),
    chain: texts('#chain tbody th[scope=row]'),
    chain_cells: texts('#chain tbody td.number'),
    worker_rows: texts('#workers tbody tr').length,
    losses: texts('#losses td.text'),
    scripts: document.scripts.length,
    requests: performance.getEntriesByType('resource').map((entry) => entry.name),
    tip: document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent,
    trouble: window.trouble,
  };
  new MutationObserver(() => {
    const probe = document.createElement('pre');
    probe.id = 'probe';
    probe.textContent = JSON.stringify({...seen, zoomed: Number(canvas.dataset.events)});
    document.body.append(probe);
  }).observe(canvas, {attributes: true, attributeFilter: ['data-events']});
  for (let i = 0; i < 4; i += 1) document.getElementById('zoom-in').click();
}, 50));
</script>"""


class Pictures:
    """A Keras-style dataset with one bad item, whose error text tries to leave the page's data."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if index == 3:
            raise ValueError(HOSTILE)
        x = np.random.default_rng(index).random((64, 32, 32), dtype=np.float32)
        return np.sort(x, axis=0), np.full(64, index)


@pytest.fixture(scope="module")
def browser() -> str:
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip("no browser to look at the report with: none of " + ", ".join(BROWSERS))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A report of two short epochs and the figures that it should show."""
    path = tmp_path_factory.mktemp("report") / "run.html"
    with penstock.Loader(
        Pictures(), workers=WORKERS, use_multiprocessing=True, on_error="skip", seed=1
    ) as feed:
        for _ in range(2):
            for x, _ in feed:
                np.linalg.svd(x[:4])  # the training step
        feed.report(path)
        return path, feed.stats()


def test_a_trace_has_what_each_worker_did(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with penstock.Loader(Pictures(), workers=WORKERS, on_error="skip") as feed:
        while not all(worker["tickets"] for worker in feed.stats()["workers"]):
            list(feed)  # the first worker may have made all batches
        feed.trace(path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    lanes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(lanes.values()) == ["consumer", *(f"worker {k}" for k in range(WORKERS))]
    made = [e for e in events if e["ph"] == "X" and e["name"] == "user code"]
    assert {lanes[e["pid"]] for e in made} == {f"worker {k}" for k in range(WORKERS)}
    assert all(e["dur"] >= 0 and e["ts"] > 0 and "epoch" in e["args"] for e in made)


def look_at(page: str, browser: str, folder: Path) -> dict[str, Any]:
    """Open `page` with the listener and the probe in it, and return the probe's result."""
    folder.mkdir(exist_ok=True)
    path = folder / "page.html"
    page = page.replace("<head>", "<head>" + LISTENER, 1)
    path.write_text(page.replace("</body>", PROBE + "</body>", 1), encoding="utf-8")
    command = [
        browser,
        "--headless=new",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser's own requests fail, too
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1280,1600",
        "--virtual-time-budget=5000",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, f"the page's scripts did not end: {done.stderr[-2000:]}"
    seen: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    return seen


@pytest.fixture(scope="module")
def seen(
    browser: str, page: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return look_at(page[0].read_text(encoding="utf-8"), browser, tmp_path_factory.mktemp("seen"))


def test_every_lane_is_drawn(seen: dict[str, Any], page: tuple[Path, dict[str, Any]]) -> None:
    assert seen["ready"]
    assert seen["lanes"][0] == "model"
    lanes = WORKERS + 1
    assert len([name for name in seen["lanes"] if name != "batches ready"]) == lanes
    assert seen["events"] >= BATCHES
    did = [worker["tickets"] > 0 for worker in page[1]["workers"]]  # one may have started too late
    assert [painted > 0 for painted in seen["painted"][:lanes]] == [True, *did]
    assert "making batches" in seen["legend"]
    assert "training step" in seen["legend"]


def test_pointing_explains_and_zooming_shows_less(seen: dict[str, Any]) -> None:
    assert seen["tip"].startswith("model: ")
    assert "epoch" in seen["tip"]
    assert 0 < seen["zoomed"] < seen["events"]


def test_the_figures_are_those_of_stats(
    page: tuple[Path, dict[str, Any]], seen: dict[str, Any]
) -> None:
    delivered = page[1]["delivered"]
    assert delivered == 2 * (BATCHES - 1)
    assert seen["figures"]["Batches"] == str(delivered)
    assert seen["figures"]["Model waited"].endswith("%")
    assert len(seen["figures"]) == 6
    assert seen["verdict"].endswith(".")
    assert seen["worker_rows"] == WORKERS
    assert {"waiting for a batch", "training step", "user code", "hand-over"} <= set(seen["stages"])
    assert seen["chain"] == [stage["stage"] for stage in page[1]["stages"]]
    assert "__getitem__" in seen["chain"]
    assert len(seen["chain_cells"]) == 5 * len(seen["chain"])
    # Workers continue, ahead of the consumer, between the page and stats().
    assert BATCHES <= int(seen["chain_cells"][4]) <= page[1]["stages"][0]["rows"]


def test_nothing_is_requested_and_nothing_goes_wrong(seen: dict[str, Any]) -> None:
    assert seen["requests"] == []
    assert seen["trouble"] == []


def test_an_error_text_stays_text(page: tuple[Path, dict[str, Any]], seen: dict[str, Any]) -> None:
    assert len(seen["losses"]) == 2  # one in each epoch
    assert all(HOSTILE in reason for reason in seen["losses"])
    assert seen["title"].endswith("penstock report")
    in_file = page[0].read_text(encoding="utf-8").count("<script")
    assert seen["scripts"] == in_file + 2  # the listener and the probe


def test_a_page_that_asks_for_more_is_caught(
    browser: str, page: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    asks = "<img src='http://127.0.0.1:9/pixel.png'><script>fail_here();</script></body>"
    text = page[0].read_text(encoding="utf-8").replace("</body>", asks, 1)
    seen = look_at(text, browser, tmp_path)
    assert any("refused: http://127.0.0.1:9/" in what for what in seen["trouble"])
    assert any("fail_here" in what for what in seen["trouble"])


def test_the_page_of_a_live_stream_shows_rates_batch_sizes_and_ages(
    browser: str, tmp_path: Path
) -> None:
    class Model:
        def predict(self, batch: Any) -> Any:
            return batch

        def train(self, batch: Any) -> float:
            time.sleep(0.004)
            return 0.0

    def source() -> Iterator[bytes]:
        for i in range(300):
            time.sleep(0.001)
            yield b"%d" % i

    with train.Online(source(), np.array, Model(), max_batch=1000) as live:
        live.run()
        live.report(tmp_path / "live.html")
        stats = live.stats()
    seen = look_at((tmp_path / "live.html").read_text(encoding="utf-8"), browser, tmp_path)
    assert seen["ready"]
    assert seen["trouble"] == []
    assert seen["requests"] == []
    assert seen["verdict"].endswith("the model keeps up with the stream.")
    assert seen["lanes"] == ["model", "messages/s", "messages a batch", "oldest message"]
    assert seen["painted"][0] > 0.05
    assert all(share > 0 for share in seen["painted"]), seen["painted"]  # of charts: the heading
    assert seen["figures"]["Messages"] == "300"
    assert seen["figures"]["Dropped"] == "0"
    assert seen["stages"] == ["waiting for messages", "training step"]
    assert sum(stats["batch_sizes"].values()) == stats["batches"]
    assert seen["tip"].startswith("model: ")
