"""Workers that cannot be started, and the errors."""

from __future__ import annotations

import threading
import warnings

import pytest

from launching import (
    PATIENCE,
    each_method,
    launcher,
    run,
    run_script,
)
from penstock import errors
from penstock.processes import launch


def test_fork_does_not_warn_of_what_its_user_was_told():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(PATIENCE,))
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert run("fork", "exit_with", {}, {"code": 0}) == 0
    finally:
        stop.set()
        thread.join()


def test_unknown_methods_are_refused():
    with pytest.raises(errors.InvalidArgument, match="spawn, forkserver, fork"):
        launch.Launcher("teleport")


@each_method
def test_settings_that_are_not_plain_are_refused(method):
    if method == "fork":
        pytest.skip("a forked worker takes settings as they are")
    with (
        launcher(method, "exit_with") as starts,
        pytest.raises(errors.InvalidArgument, match="small and plain"),
    ):
        starts.start(0, {}, {"object": object()})


@each_method
def test_a_closed_launcher_starts_nothing(method):
    starts = launch.Launcher(method, "launch_mains:exit_with")
    starts.close()
    starts.close()
    with pytest.raises(errors.Closed):
        starts.start(0, {}, {})


@each_method
def test_used_up_descriptors_are_an_error_and_not_a_hang(method, tmp_path):
    done = run_script(
        tmp_path,
        """
        import resource
        starts = launch.Launcher(METHOD, "launch_mains:exit_with")
        assert starts.start(0, {}, {"code": 0}).wait(20) == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = []
        try:
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for free in range(4):
            try:
                starts.start(0, {}, {"code": 0}).wait(20)
            except errors.Error as error:
                print(type(error).__name__)
            except OSError as error:
                print("bare", error)
            os.close(files.pop())
        for fd in files:
            os.close(fd)
        print(starts.start(0, {}, {"code": 7}).wait(20))
        """,
        method,
    )
    *refusals, last = done.stdout.split()
    assert last == "7", done.stderr
    assert refusals
    assert set(refusals) == {"System"}


@each_method
def test_development_mode_finds_nothing_to_warn_of(method, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    done = run_script(
        tmp_path,
        """
        import penstock
        options = dict(workers=1, use_multiprocessing=True, start_method=METHOD)
        with penstock.Loader([1, 2, 3], **options) as feed:
            print(list(feed))
        """,
        method,
    )
    assert (done.stdout, done.stderr) == ("[1, 2, 3]\n", "")


def test_a_script_that_multiprocessing_imports_again_is_told_what_to_write(tmp_path):
    done = run_script(
        tmp_path,
        """
        import multiprocessing
        launch.check_not_inheriting()
        print("made")
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=print)
            process.start()
            process.join()
        """,
        "spawn",
    )
    assert done.stdout == "made\n"
    assert "InvalidArgument" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    assert "penstock.Loader" in done.stderr
