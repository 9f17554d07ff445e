"""How worker processes start, what they are given, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

from penstock import _launch, errors

HERE = str(pathlib.Path(__file__).parent)
METHODS = ("spawn", "forkserver", "fork")
PATIENCE = 20.0  # seconds that no test needs


@pytest.fixture(autouse=True)
def _mains_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


class Answers:
    """The reading end of a pipe that workers answer into."""

    def __init__(self):
        self.read_fd, self.write_fd = os.pipe()

    def get(self):
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.read_fd], [], [], PATIENCE)
            assert ready, "no answer"
            byte = os.read(self.read_fd, 1)
            assert byte, "the worker ended without an answer"
            line += byte
        return json.loads(line)

    def close(self):
        os.close(self.read_fd)
        os.close(self.write_fd)


@pytest.fixture
def answers():
    pipe = Answers()
    yield pipe
    pipe.close()


@pytest.fixture
def capture():
    fd = os.memfd_create("penstock-stderr")
    yield fd
    os.close(fd)


@contextlib.contextmanager
def launcher(method, main):
    made = _launch.Launcher(method, f"launch_mains:{main}")
    try:
        yield made
    finally:
        made.close()


def run(method, main, fds, settings=None, index=0):
    with launcher(method, main) as starts:
        worker = starts.start(index, fds, settings or {})
        try:
            return worker.wait(PATIENCE)
        finally:
            worker.kill()
            worker.close()


def said(capture):
    return os.pread(capture, 1 << 20, 0).decode()


def ended(pidfd, timeout=PATIENCE):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


# ---- what a worker gets -------------------------------------------------------------------------


def described(method, answers, extra=(), index=0, settings=None):
    fds = {"answer": answers.write_fd, **dict(extra)}
    with launcher(method, "describe") as starts:
        worker = starts.start(index, fds, settings or {})
        description = answers.get()
        assert worker.wait(PATIENCE) == 0
        worker.close()
    return description


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


def test_signals_are_the_parents_business(method, answers):
    worker = described(method, answers)
    assert worker["sigint"]
    assert worker["sigterm"]
    assert signal.SIGINT not in worker["blocked"]
    assert signal.SIGTERM not in worker["blocked"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


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
    # A forked dataset may go on using the files that it has open.
    assert (str(tmp_path / "users_file") in links) == (method == "fork")


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
    for heavy in ("cloudpickle", "multiprocessing", "subprocess", "socket", "penstock._launch"):
        assert heavy not in modules


def test_no_worker_imports_the_script_again(method, answers, tmp_path):
    done = run_script(
        tmp_path,
        """
        print("script", flush=True)
        worker = _launch.Launcher(METHOD, "launch_mains:exit_with").start(0, {}, {"code": 0})
        print(worker.wait(20))
        """,
        method,
    )
    assert done.stdout == "script\n0\n", done.stderr


def test_words_that_wait_in_the_parent_are_written_once(method, tmp_path):
    done = run_script(
        tmp_path,
        """
        print("before")
        worker = _launch.Launcher(METHOD, "launch_mains:exit_with").start(0, {}, {"code": 0})
        worker.wait(20)
        """,
        method,
    )
    assert done.stdout == "before\n"


# ---- standard error -----------------------------------------------------------------------------


def test_standard_error_is_kept_until_the_worker_is_ready(method, answers, capture, capfd):
    assert run(method, "speak", {"answer": answers.write_fd, "stderr": capture}) == 0
    assert answers.get() == "done"
    assert said(capture) == "before\nfrom below\n"
    assert capfd.readouterr().err == "before\nfrom below\nafter\n"


def test_what_a_dying_worker_says_can_be_quoted(method, capture, capfd):
    assert run(method, "fail", {"stderr": capture}) == 1
    assert said(capture).startswith("some words\nTraceback")
    assert "LookupError: the worker's own trouble" in said(capture)
    assert capfd.readouterr().err == ""


def test_without_a_capture_standard_error_is_the_parents(method, capfd):
    assert run(method, "fail", {}) == 1
    assert "LookupError: the worker's own trouble" in capfd.readouterr().err


@pytest.mark.parametrize("main", ["launch_mains:nothing", "no_such_module:main"])
def test_a_main_function_that_is_not_there_says_so(method, main, capture):
    starts = _launch.Launcher(method, main)
    worker = starts.start(0, {"stderr": capture}, {})
    assert worker.wait(PATIENCE) == 1
    assert "Error" in said(capture)
    worker.close()
    starts.close()


# ---- how workers end ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_codes_are_reported(method, code):
    assert run(method, "exit_with", {}, {"code": code}) == code


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_signals_that_kill_are_reported(method, number):
    assert run(method, "kill_itself", {}, {"signal": int(number)}) == -number


def test_the_end_is_described():
    assert _launch.describe_exit(0) == "exited with 0"
    assert _launch.describe_exit(3) == "exited with 3"
    assert _launch.describe_exit(-11) == "killed by SIGSEGV"
    assert _launch.describe_exit(-9).startswith("killed by SIGKILL (")
    assert _launch.describe_exit(-50) == "killed by signal 50"
    assert "nobody knows" in _launch.describe_exit(_launch.UNKNOWN_STATUS)


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
        worker.kill()  # of no effect now
        worker.close()
        worker.close()


def test_a_process_that_somebody_else_reaped_is_no_obstacle():
    with launcher("spawn", "exit_with") as starts:
        worker = starts.start(0, {}, {"code": 0})
        os.waitpid(worker.pid, 0)
        assert worker.wait(PATIENCE) == _launch.UNKNOWN_STATUS
        worker.close()


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
def test_the_parents_death_ends_every_worker(method, how, tmp_path, answers):
    script = """
        starts = _launch.Launcher(METHOD, "launch_mains:wait")
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


def test_a_child_of_the_parent_does_not_keep_workers_alive(method, tmp_path, answers):
    script = """
        starts = _launch.Launcher(METHOD, "launch_mains:wait")
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


# ---- the fork server ----------------------------------------------------------------------------


def test_loaders_share_one_fork_server_and_the_last_ends_it():
    first = _launch.Launcher("forkserver", "launch_mains:exit_with")
    second = _launch.Launcher("forkserver", "launch_mains:exit_with")
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
        assert before.wait(0.05) is None  # its workers live on
        after = starts.start(0, {"answer": answers.write_fd}, {})
        assert answers.get() == after.pid
        before.kill()
        assert before.wait(PATIENCE) == _launch.UNKNOWN_STATUS
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


# ---- refusals -----------------------------------------------------------------------------------


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
        _launch.Launcher("teleport")


def test_settings_that_are_not_plain_are_refused(method):
    if method == "fork":
        pytest.skip("a forked worker takes settings as they are")
    with (
        launcher(method, "exit_with") as starts,
        pytest.raises(errors.InvalidArgument, match="small and plain"),
    ):
        starts.start(0, {}, {"object": object()})


def test_a_closed_launcher_starts_nothing(method):
    starts = _launch.Launcher(method, "launch_mains:exit_with")
    starts.close()
    starts.close()
    with pytest.raises(errors.Closed):
        starts.start(0, {}, {})


def test_used_up_descriptors_are_an_error_and_not_a_hang(method, tmp_path):
    done = run_script(
        tmp_path,
        """
        import resource
        starts = _launch.Launcher(METHOD, "launch_mains:exit_with")
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
        _launch.check_not_inheriting()
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


# ---- scripts ------------------------------------------------------------------------------------

PREAMBLE = "import os, signal, sys\nfrom penstock import _launch, errors\n"


def script_command(folder, text, method, *args):
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(line[indent:] for line in lines)
    path = folder / "script.py"
    path.write_text(f"{PREAMBLE}METHOD = {method!r}\n{body}\n")
    return [sys.executable, str(path), *map(str, args)]


def script_environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *sys.path])}


def run_script(folder, text, method):
    return subprocess.run(
        script_command(folder, text, method),
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@contextlib.contextmanager
def start_script(folder, text, method, answer):
    with subprocess.Popen(
        script_command(folder, text, method, answer),
        env=script_environment(),
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[answer],
    ) as process:
        try:
            yield process
        finally:
            process.kill()
