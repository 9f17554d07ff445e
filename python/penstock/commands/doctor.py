"""``penstock doctor``: checks the limits of this machine, and prints what to change."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import Error
from . import bytes_text

OK, WARN, FAIL = "ok", "warn", "fail"

# Descriptors that a Loader opens, besides a few for each worker process.
_DESCRIPTORS_WANTED = 256
_DESCRIPTORS_NEEDED = 32
_MEMORY_WANTED = 1 << 30
_LINK_BYTES = 64 << 20  # of a copy that measures the way to a device


@dataclass
class Finding:
    """One line of the diagnosis."""

    name: str
    status: str
    found: str
    change: str = ""  # advice for the user


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine, and say what to change",
        description="Checks what feeding needs and says what to change. Exit code 1: something "
        "does not work.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    findings = examine()
    failed = sum(finding.status == FAIL for finding in findings)
    if options.json:
        result = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(result, indent=1))
        return 1 if failed else 0
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.status:5} {finding.name:{width}}  {finding.found}")
        if finding.change:
            print(f"{'':5} {'':{width}}  -> {finding.change}")
    warned = sum(finding.status == WARN for finding in findings)
    if failed:
        print(f"\n{failed} of {len(findings)} checks failed: penstock will not work as it should.")
    elif warned:
        print(f"\nEverything works; {warned} of {len(findings)} lines say what could be better.")
    else:
        print("\nEverything works.")
    return 1 if failed else 0


def examine() -> list[Finding]:
    """Run every check. A check that raises is a finding, too."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check()
        except Exception as error:
            name = check.__name__.lstrip("_").replace("_", " ")
            findings.append(Finding(name, FAIL, f"{type(error).__name__}: {error}"))
    return findings


# ---- versions ------------------------------------------------------------------------------------


def python() -> Iterator[Finding]:
    version = platform.python_version()
    found = f"{version} ({platform.python_implementation()}, {sys.executable})"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        yield Finding(
            "python",
            WARN,
            found + ", free-threaded",
            "arrays are copied once on their way; threads run in parallel",
        )
    else:
        yield Finding("python", OK, found)


def numpy() -> Iterator[Finding]:
    import numpy as np

    version = tuple(int(part) for part in re.findall(r"\d+", np.__version__)[:2])
    if version < (1, 23):
        yield Finding("numpy", FAIL, np.__version__, "pip install -U 'numpy>=1.23'")
    else:
        yield Finding("numpy", OK, np.__version__)


def engine() -> Iterator[Finding]:
    from importlib import metadata

    from .. import _engine

    try:
        version = metadata.version("penstock")
    except metadata.PackageNotFoundError:
        version = "not installed as a package"
    yield Finding("engine", OK, f"{version} ({_engine.__file__})")


def system() -> Iterator[Finding]:
    libc, version = platform.libc_ver()
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if not sys.platform.startswith("linux"):
        yield Finding("system", FAIL, found, "penstock runs on Linux, WSL2 included")
        return
    yield Finding("system", OK, found)
    if hasattr(ctypes.CDLL(None), "mallopt"):
        yield Finding("C library", OK, f"{libc or 'a C library'} {version}".strip())
    else:
        yield Finding(
            "C library",
            WARN,
            f"{libc or 'not glibc'} {version}".strip(),
            "it gives freed memory back at once, so that temporaries cost page faults; glibc is "
            "faster",
        )


# ---- processors ----------------------------------------------------------------------------------


def cores() -> Iterator[Finding]:
    from .. import _engine

    usable, allowed = _engine.usable_cores(), len(os.sched_getaffinity(0))
    total = os.cpu_count() or 1
    why = []
    if allowed < total:
        why.append(f"this process may run on {allowed} of them")
    if usable < allowed:
        why.append("the control group's quota allows no more")
    found = f"{usable} usable of {total}" + (f": {', '.join(why)}" if why else "")
    if usable == 1:
        yield Finding(
            "cores",
            WARN,
            found,
            "with one core, workers help only while the model waits for a device; raise the quota "
            "or the affinity if you can",
        )
    else:
        yield Finding("cores", OK, found)


def _link(number: int) -> str:
    """The speed of the way to a CUDA device, in words."""
    from ..device.place import link_speed

    try:
        pinned, pageable = link_speed(number, _LINK_BYTES)
    except Error as error:
        return f"its link could not be measured ({error})"
    there = f"{pinned / 1e9:.1f} GB/s to it from pinned memory" if pinned else "no pinned memory"
    return f"{there}, {pageable / 1e9:.1f} GB/s from other memory"


def devices() -> Iterator[Finding]:
    from ..device.place import cuda_devices

    found = [
        f"cuda:{number} {name}, {bytes_text(size)}, {_link(number)}"
        for number, (name, size) in enumerate(cuda_devices())
    ]
    if not found:
        yield Finding("devices", OK, "the CPU; no CUDA driver")
        return
    pinned, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if pinned != resource.RLIM_INFINITY:
        found.append(f"ulimit -l is {bytes_text(pinned)}")
    yield Finding("devices", OK, "; ".join(found))


def cpu_features() -> Iterator[Finding]:
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    line = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    flags = set(line[1].split()) if line else set()
    wanted = ("sse4_2", "avx2", "avx512f", "asimd", "sve", "crc32", "pclmulqdq")
    found = " ".join(flag for flag in wanted if flag in flags) or "none that is known"
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in flags:
        yield Finding(
            "CPU features",
            WARN,
            found,
            "without AVX2 copies and decoding are slower; a virtual machine may hide it: set its "
            "CPU type to that of the host",
        )
    else:
        yield Finding("CPU features", OK, found)


# ---- memory --------------------------------------------------------------------------------------


def memory() -> Iterator[Finding]:
    from .. import _engine

    limit, headroom = _engine.memory_limit(), _engine.memory_headroom()
    found = f"{bytes_text(headroom)} free of {bytes_text(limit)}"
    if headroom < _MEMORY_WANTED:
        yield Finding(
            "memory",
            WARN,
            found,
            "the system kills what exceeds it: use smaller batches, fewer workers, or "
            "Loader(max_bytes=...)",
        )
    else:
        yield Finding("memory", OK, found)


def shared_memory() -> Iterator[Finding]:
    from .. import _engine

    size = 1 << 20
    try:
        fd = _engine.memory_file("penstock-doctor")
        try:
            os.ftruncate(fd, size)
            os.pwrite(fd, b"\1" * size, 0)
        finally:
            os.close(fd)
    except OSError as error:
        yield Finding(
            "shared memory",
            FAIL,
            f"no anonymous memory file can be made: {error}",
            "memfd_create must be allowed (a container's seccomp profile may forbid it), and "
            "RLIMIT_FSIZE above a batch's size",
        )
        return
    found = "anonymous memory files work; /dev/shm is not used"
    yield Finding("shared memory", OK, found)


def limits() -> Iterator[Finding]:
    yield _limit(
        "file size",
        resource.RLIMIT_FSIZE,
        "batches lie in memory files, which this limit counts: ulimit -f unlimited",
        wanted=1 << 30,
        needed=1 << 20,
    )
    yield _limit(
        "address space",
        resource.RLIMIT_AS,
        "the engine reserves addresses ahead of need; it does with less: ulimit -v unlimited",
        wanted=1 << 40,
        needed=1 << 30,
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    change = f"ulimit -n {4096 if hard < 0 else min(hard, 4096)}"
    status = OK if soft < 0 or soft >= _DESCRIPTORS_WANTED else WARN
    if 0 <= soft < _DESCRIPTORS_NEEDED:
        status = FAIL
    yield Finding("open files", status, _amount(soft, str), "" if status == OK else change)


def _limit(name: str, which: int, change: str, wanted: int, needed: int) -> Finding:
    soft = resource.getrlimit(which)[0]
    status = OK if soft == resource.RLIM_INFINITY or soft >= wanted else WARN
    if soft != resource.RLIM_INFINITY and soft < needed:
        status = FAIL
    return Finding(name, status, _amount(soft, bytes_text), "" if status == OK else change)


def _amount(soft: int, text: Callable[[int], str]) -> str:
    return "unlimited" if soft == resource.RLIM_INFINITY else f"at most {text(soft)}"


def huge_pages() -> Iterator[Finding]:
    path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    try:
        chosen = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        yield Finding("huge pages", OK, "the kernel has none for shared memory; not needed")
        return
    word = chosen[1] if chosen else "unknown"
    use = "used for batches" if word in ("always", "within_size", "advise", "force") else "not used"
    yield Finding("huge pages", OK, f"shmem_enabled is {word!r}: {use}")


# ---- workers -------------------------------------------------------------------------------------


def process_handles() -> Iterator[Finding]:
    from .. import _engine

    try:
        os.close(_engine.open_process(os.getpid()))
    except Exception as error:
        yield Finding(
            "pidfd",
            FAIL,
            f"no handle of a process can be opened: {error}",
            "worker processes need pidfd_open (Linux 5.3 or newer, allowed by the container's "
            "seccomp profile); threads work without",
        )
    else:
        yield Finding("pidfd", OK, "the end of a worker is noticed at once")


class Probe:
    """A small dataset whose items own their memory."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Any:
        import numpy as np

        return np.full(1 << 16, k, np.float64)


def workers() -> Iterator[Finding]:
    """Feed a few batches by processes, with every start method."""
    import time

    from ..loader import Loader

    handed_over = False
    for method in ("spawn", "forkserver", "fork"):
        began = time.perf_counter()
        try:
            with Loader(Probe(), workers=1, use_multiprocessing=True, start_method=method) as feed:
                batches = iter(feed)
                right = bool((next(batches) == 0).all())
                first = time.perf_counter() - began
                right = [float(batch[0]) for batch in batches] == [1, 2, 3] and right
                handed_over |= feed.stats()["copies_avoided"] > 0
        except Exception as error:
            change = "" if method == "spawn" else "start_method='spawn', the default, may work"
            status = FAIL if method == "spawn" else WARN
            yield Finding(f"workers, {method}", status, f"{type(error).__name__}: {error}", change)
            continue
        if right:
            yield Finding(f"workers, {method}", OK, f"first batch after {first * 1e3:.0f} ms")
        else:
            yield Finding(f"workers, {method}", FAIL, "the batches are not what was made")
    if handed_over:
        yield Finding("zero copy", OK, "NumPy's arrays are made in shared memory (NEP 49)")
    else:
        yield Finding(
            "zero copy",
            WARN,
            "NumPy's memory handler cannot be replaced here (NEP 49): arrays are copied once",
            "another library may have set its own handler, or Python is free-threaded",
        )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python,
    numpy,
    engine,
    system,
    cores,
    devices,
    cpu_features,
    memory,
    shared_memory,
    limits,
    huge_pages,
    process_handles,
    workers,
)
