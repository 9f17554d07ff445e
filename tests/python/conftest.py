"""Checks after every test: no process, shared memory or thread is left behind. Shared fixtures."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fake_cuda
from launching import Answers
from leftovers import remains

# Threads of the engine reap and join ended workers: wait for them.
GRACE_S = 5.0


# A shell's "&" and nohup ignore SIGINT, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A module that imports a framework when it is collected, by itself or through torch_contract.
IMPORTS_A_FRAMEWORK = re.compile(
    r"""^(\w+ = )?pytest\.importorskip\("(accelerate|jax|keras|ray|tensorflow|torch)\W"""
    r"""|^(import|from) (accelerate|jax|keras|ray|tensorflow|torch|torch_contract)\b""",
    re.MULTILINE,
)

# The text of a test, and the names of frameworks in it or in its parameters.
TEST_FUNCTION = re.compile(r"^def (test_\w+)(.*?)(?=^[^\s)]|\Z)", re.MULTILINE | re.DOTALL)
FRAMEWORK = re.compile(r"(?<![a-z])(accelerate|jax|keras|ray|tensorflow|torch)(?![a-z])")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--frameworks",
        choices=("all", "without", "only"),
        default="all",
        help="modules of tests: all, those that import no framework, or the others. A fork of a "
        "process that has imported frameworks takes twice the time",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what --frameworks leaves out; files named on the command line run always."""
    part = config.getoption("--frameworks")
    if part == "all" or not collection_path.match("test_*.py"):
        return None
    imports = IMPORTS_A_FRAMEWORK.search(collection_path.read_text(encoding="utf-8")) is not None
    return True if imports != (part == "only") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of modules that import none, tests that do go last: every fork after them takes longer."""
    if config.getoption("--frameworks") != "without":
        return
    functions: dict[Path, set[str]] = {}

    def imports_a_framework(item: pytest.Item) -> bool:
        if item.path not in functions:
            found = TEST_FUNCTION.findall(item.path.read_text(encoding="utf-8"))
            functions[item.path] = {name for name, body in found if FRAMEWORK.search(body)}
        name, _, parameters = item.name.partition("[")
        return name in functions[item.path] or FRAMEWORK.search(parameters) is not None

    items.sort(key=imports_a_framework)


def pytest_configure(config: pytest.Config) -> None:
    """What jax compiled is kept for all processes of the tests, and for later runs."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(autouse=True, scope="module")
def frameworks_are_no_garbage() -> None:
    """Collections look at what the module's tests made, not at the objects of frameworks."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves new processes, memfds or threads behind."""
    before = remains()
    yield
    deadline = time.monotonic() + GRACE_S
    left = remains() - before
    while left and time.monotonic() < deadline:
        gc.collect()  # each time, because a thread that ends late may have referred to a cycle
        time.sleep(0.02)
        left = remains() - before
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(sorted(left)), pytrace=False)


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A pipe for the answers of worker processes that the test starts."""
    pipe = Answers()
    yield pipe
    pipe.close()


@pytest.fixture
def name() -> Iterator[str]:
    """A name of this test's own, for weights (unpublished after it), a channel or a Batcher."""
    from penstock import errors, train

    made = f"test-{uuid.uuid4().hex}"
    yield made
    with contextlib.suppress(errors.NotFound):
        train.unpublish(made)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python with these arguments, and a pipe as its stdout; it is killed after the test."""
    processes: list[subprocess.Popen[str]] = []

    def started(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The CUDA driver for tests, compiled once."""
    return fake_cuda.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(library, monkeypatch):
    """The fake driver, and a consumer of its own in torch's place."""
    from penstock.device import place

    driver = fake_cuda.Driver(library)
    driver.reset()
    monkeypatch.setattr(place, "library", str(library))
    monkeypatch.setattr(place, "check_torch", lambda: None)
    monkeypatch.setattr(place, "tensors_from", fake_cuda.Tensor.all_of)
    monkeypatch.setattr(fake_cuda.Tensor, "driver", driver, raising=False)
    yield driver
    gc.collect()
    driver.reset()
    assert driver.get("copies to freed memory") == 0
