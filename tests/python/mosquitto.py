"""A mosquitto broker on loopback, which a test starts, kills and starts again."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """A broker with its files in a folder. `start` after `kill` takes the same port."""

    def __init__(self, folder: Path, settings: str = "", user: str = "", tls: str = "") -> None:
        if PROGRAM is None:
            raise FileNotFoundError("mosquitto is not installed: tools/setup_system.sh test")
        self.folder, self.port = folder, 0
        self._settings, self._tls, self._user = settings, tls, user
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if user:
            name, password = user.split(":")
            passwords = folder / "passwords"
            tool = Path(PROGRAM).parent / "mosquitto_passwd"
            program = str(tool) if tool.exists() else "mosquitto_passwd"
            subprocess.run([program, "-c", "-b", str(passwords), name, password], check=True)

    @property
    def url(self) -> str:
        return f"{'mqtts' if self._tls else 'mqtt'}://localhost:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        for _ in range(5):
            if self.port == 0:
                self.port = _free_port()
            if self._start_at(self.port):
                return
            if self._process is not None:
                self._process.wait()
        raise RuntimeError((self.folder / "log").read_text())

    def _start_at(self, port: int) -> bool:
        lines = [
            f"listener {port} 127.0.0.1",
            f"allow_anonymous {'false' if self._user else 'true'}",
            f"log_dest file {self.folder}/log",
            "persistence true",
            f"persistence_location {self.folder}/",
            "max_queued_messages 0",
            "user root",
        ]
        if self._user:
            lines.append(f"password_file {self.folder}/passwords")
        lines += [self._tls, self._settings]
        config = self.folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 10
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        """End it. It saves what it has for its clients."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def broker(folder: Path, settings: str = "", user: str = "", tls: str = "") -> Iterator[Mosquitto]:
    """A running broker; `settings` and `tls` are lines of its configuration."""
    one = Mosquitto(folder, settings, user, tls)
    try:
        one.start()
        yield one
    finally:
        one.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
