"""How worker processes end, also when their parent dies."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from launching import (
    PATIENCE,
    each_method,
    ended,
    launcher,
    run,
    start_script,
)
from penstock.processes import child


@pytest.mark.parametrize("code", [0, 3, 255])
@each_method
def test_exit_codes_are_reported(method, code):
    assert run(method, "exit_with", {}, {"code": code}) == code


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
@each_method
def test_signals_that_kill_are_reported(method, number):
    assert run(method, "kill_itself", {}, {"signal": int(number)}) == -number


def test_the_end_is_described():
    assert child.describe_exit(0) == "exited with 0"
    assert child.describe_exit(3) == "exited with 3"
    assert child.describe_exit(-11) == "killed by SIGSEGV"
    assert child.describe_exit(-9).startswith("killed by SIGKILL (")
    assert child.describe_exit(-50) == "killed by signal 50"
    assert "unknown status" in child.describe_exit(child.UNKNOWN_STATUS)


@each_method
def test_waiting_has_an_end_and_killing_works_by_handle(method, answers):
    with launcher(method, "wait") as starts:
        worker = starts.start(0, {"answer": answers.write_fd}, {})
        assert answers.get() == worker.pid
        assert worker.wait(0) is None
        assert worker.wait(0.05) is None
        worker.kill(signal.SIGINT)  # ignored
        assert worker.wait(0.05) is None
        worker.kill(signal.SIGTERM)
        assert worker.wait(PATIENCE) == -signal.SIGTERM
        assert worker.wait() == -signal.SIGTERM
        worker.kill()  # no effect now
        worker.close()
        worker.close()


def test_a_process_that_somebody_else_reaped_is_no_obstacle():
    with launcher("spawn", "exit_with") as starts:
        worker = starts.start(0, {}, {"code": 0})
        os.waitpid(worker.pid, 0)
        assert worker.wait(PATIENCE) == child.UNKNOWN_STATUS
        worker.close()


@each_method
def test_many_threads_may_start_and_wait(method):
    statuses = []
    with launcher(method, "exit_with") as starts:

        def one(code):
            worker = starts.start(code, {}, {"code": code})
            statuses.append(worker.wait(PATIENCE) == code)
            worker.close()

        threads = [threading.Thread(target=one, args=(code,)) for code in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert statuses == [True] * 6


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@each_method
def test_the_parents_death_ends_every_worker(method, how, tmp_path, answers):
    script = """
        starts = launch.Launcher(METHOD, "launch_mains:wait")
        workers = [starts.start(i, {"answer": int(sys.argv[1])}, {}) for i in range(3)]
        server = starts._server._process.pid if METHOD == "forkserver" else 0
        print(server, flush=True)
        signal.pause()
        """
    with start_script(tmp_path, script, method, answers.write_fd) as parent:
        handles = [os.pidfd_open(answers.get()) for _ in range(3)]
        server = int(parent.stdout.readline())
        if server:
            handles.append(os.pidfd_open(server))
        assert not any(ended(handle, 0) for handle in handles)
        parent.send_signal(how)
        begin = time.monotonic()
        assert all(ended(handle) for handle in handles)
        assert time.monotonic() - begin < 1
        for handle in handles:
            os.close(handle)


@each_method
def test_a_child_of_the_parent_does_not_keep_workers_alive(method, tmp_path, answers):
    script = """
        starts = launch.Launcher(METHOD, "launch_mains:wait")
        worker = starts.start(0, {"answer": int(sys.argv[1])}, {})
        bystander = os.fork()
        if bystander == 0:
            signal.pause()
        print(bystander, flush=True)
        signal.pause()
        """
    with start_script(tmp_path, script, method, answers.write_fd) as parent:
        handle = os.pidfd_open(answers.get())
        bystander = int(parent.stdout.readline())
        try:
            parent.kill()
            assert ended(handle, 1)
        finally:
            os.kill(bystander, signal.SIGKILL)
            os.close(handle)
