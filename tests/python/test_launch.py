"""How worker processes start, and their descriptors and settings."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from launching import (
    PATIENCE,
    described,
    each_method,
    launcher,
    run,
    run_script,
    said,
)
from penstock.processes import launch


@pytest.fixture
def capture():
    fd = os.memfd_create("penstock-stderr")
    yield fd
    os.close(fd)


# ---- what a worker gets -------------------------------------------------------------------------


@each_method
def test_a_worker_gets_index_settings_and_descriptors(method, answers, capture):
    settings = {"a": 1, "b": [1.5, None, "x"], "c": {"d": True}}
    worker = described(method, answers, {"stderr": capture}, 3, settings)
    assert worker["index"] == 3
    assert worker["settings"] == settings
    assert worker["names"] == ["answer"]
    assert worker["inheritable"] == []
    number = str(worker["numbers"]["answer"])
    assert worker["links"][number] == os.readlink(f"/proc/self/fd/{answers.write_fd}")
    assert "penstock-stderr" in worker["links"]["2"]
    assert worker["links"]["0"] == os.devnull


@each_method
def test_a_worker_looks_like_its_parent(method, answers, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_TEST", "1")
    monkeypatch.setattr(sys, "argv", ["script", "--flag"])
    monkeypatch.syspath_prepend("/nowhere")
    worker = described(method, answers)
    assert worker["path"] == sys.path
    assert worker["argv"] == ["script", "--flag"]
    assert worker["folder"] == str(tmp_path)
    assert worker["environment"]["PENSTOCK_TEST"] == "1"


@each_method
def test_environment_and_folder_of_later_workers_are_those_of_their_start(
    method, answers, monkeypatch, tmp_path
):
    fds = {"answer": answers.write_fd}
    with launcher(method, "describe") as starts:
        for value in ("first", "second"):
            folder = tmp_path / value
            folder.mkdir()
            monkeypatch.chdir(folder)
            monkeypatch.setenv("PENSTOCK_TEST", value)
            worker = starts.start(0, fds, {})
            description = answers.get()
            assert description["environment"]["PENSTOCK_TEST"] == value
            assert description["folder"] == str(folder)
            assert worker.wait(PATIENCE) == 0
            worker.close()


@pytest.mark.skipif(
    sys.version_info[:3] == (3, 13, 0), reason="Python 3.13.0 itself fails in a deleted folder"
)
@each_method
def test_a_deleted_folder_is_no_obstacle(method, answers, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with launcher(method, "speak") as starts:
        worker = starts.start(0, {"answer": answers.write_fd}, {})
        assert answers.get() == "done"
        assert worker.wait(PATIENCE) == 0
        worker.close()


@each_method
def test_signals_are_the_parents_business(method, answers):
    worker = described(method, answers)
    assert worker["sigint"]
    assert worker["sigterm"]
    assert signal.SIGINT not in worker["blocked"]
    assert signal.SIGTERM not in worker["blocked"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@each_method
def test_other_descriptors_of_the_parent_stay_with_it(method, answers, tmp_path):
    with open(tmp_path / "users_file", "w") as users_file:
        os.set_inheritable(users_file.fileno(), True)
        ours = os.memfd_create("penstock-arena")
        os.set_inheritable(ours, True)
        try:
            links = described(method, answers)["links"].values()
        finally:
            os.close(ours)
    assert not any("penstock" in link and "memfd" in link for link in links)
    # A forked dataset may continue to use its open files.
    assert (str(tmp_path / "users_file") in links) == (method == "fork")


@each_method
def test_starting_leaks_no_descriptors(method, answers, capture):
    fds = {"answer": answers.write_fd, "stderr": capture}
    with launcher(method, "exit_with") as starts:
        counts = []
        for _ in range(4):
            worker = starts.start(0, fds, {"code": 0})
            assert worker.wait(PATIENCE) == 0
            worker.close()
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[1:] == counts[:1] * 3
    assert len(os.listdir("/proc/self/fd")) <= counts[0]


def test_a_spawned_worker_imports_only_what_it_needs(answers):
    modules = described("spawn", answers)["modules"]
    for heavy in (
        "cloudpickle",
        "multiprocessing",
        "subprocess",
        "socket",
        "penstock.processes.launch",
    ):
        assert heavy not in modules


@each_method
def test_no_worker_imports_the_script_again(method, answers, tmp_path):
    done = run_script(
        tmp_path,
        """
        print("script", flush=True)
        worker = launch.Launcher(METHOD, "launch_mains:exit_with").start(0, {}, {"code": 0})
        print(worker.wait(20))
        """,
        method,
    )
    assert done.stdout == "script\n0\n", done.stderr


@each_method
def test_words_that_wait_in_the_parent_are_written_once(method, tmp_path):
    done = run_script(
        tmp_path,
        """
        print("before")
        worker = launch.Launcher(METHOD, "launch_mains:exit_with").start(0, {}, {"code": 0})
        worker.wait(20)
        """,
        method,
    )
    assert done.stdout == "before\n"


# ---- standard error -----------------------------------------------------------------------------


@each_method
def test_standard_error_is_kept_until_the_worker_is_ready(method, answers, capture, capfd):
    assert run(method, "speak", {"answer": answers.write_fd, "stderr": capture}) == 0
    assert answers.get() == "done"
    assert said(capture) == "before\nfrom below\n"
    assert capfd.readouterr().err == "before\nfrom below\nafter\n"


@each_method
def test_what_a_dying_worker_says_can_be_quoted(method, capture, capfd):
    assert run(method, "fail", {"stderr": capture}) == 1
    assert said(capture).startswith("some words\nTraceback")
    assert "LookupError: the worker's own trouble" in said(capture)
    assert capfd.readouterr().err == ""


@each_method
def test_without_a_capture_standard_error_is_the_parents(method, capfd):
    assert run(method, "fail", {}) == 1
    assert "LookupError: the worker's own trouble" in capfd.readouterr().err


@pytest.mark.parametrize("main", ["launch_mains:nothing", "no_such_module:main"])
@each_method
def test_a_main_function_that_is_not_there_says_so(method, main, capture):
    starts = launch.Launcher(method, main)
    worker = starts.start(0, {"stderr": capture}, {})
    assert worker.wait(PATIENCE) == 1
    assert "Error" in said(capture)
    worker.close()
    starts.close()
