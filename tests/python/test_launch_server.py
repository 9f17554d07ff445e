"""The fork server, which all Loaders of a process share."""

from __future__ import annotations

import os
import signal

import pytest

from launching import (
    PATIENCE,
    ended,
    launcher,
)
from penstock import errors
from penstock.processes import child, launch


def test_loaders_share_one_fork_server_and_the_last_ends_it():
    first = launch.Launcher("forkserver", "launch_mains:exit_with")
    second = launch.Launcher("forkserver", "launch_mains:exit_with")
    assert first._server is second._server
    handle = os.dup(first._server._process.pidfd)
    first.close()
    assert not ended(handle, 0)
    worker = second.start(0, {}, {"code": 4})
    assert worker.wait(PATIENCE) == 4
    second.close()
    assert ended(handle)
    os.close(handle)


def test_a_killed_fork_server_is_replaced(answers):
    with launcher("forkserver", "wait") as starts:
        before = starts.start(0, {"answer": answers.write_fd}, {})
        answers.get()
        server = starts._server._process
        server.kill()
        server.wait(PATIENCE)
        assert before.wait(0.05) is None  # its workers continue
        after = starts.start(0, {"answer": answers.write_fd}, {})
        assert answers.get() == after.pid
        before.kill()
        assert before.wait(PATIENCE) == child.UNKNOWN_STATUS
        after.kill()
        assert after.wait(PATIENCE) == -signal.SIGKILL
        before.close()
        after.close()


def test_a_fork_server_that_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('numpy is broken here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        launcher("forkserver", "exit_with") as starts,
        pytest.raises(errors.System, match="numpy is broken here"),
    ):
        starts.start(0, {}, {"code": 0})
