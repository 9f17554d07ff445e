"""An HTTP server on loopback that serves bytes from memory, and fails on command."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """Files by name. All counts are of requests for a file's bytes (GET)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.ranges = True  # whether parts of a file are sent
        self.gets: Counter[str] = Counter()
        self.heads: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # bytes
        self.order: list[str] = []
        self.broken: dict[str, list[object]] = {}  # what happens to the next GETs
        self.always: dict[str, object] = {}  # what happens to every GET
        self.released = threading.Event()  # ends stalls
        self.delay = 0.0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, data: bytes, tag: str | None = None) -> str:
        """Serve a file; returns its URL."""
        self.files[name] = data
        self.tags[name] = tag or f'"{hash(data) & 0xFFFFFFFF:x}"'
        return f"{self.url}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that closes its connection


class _Handler(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        server, name = self.server, self.path.partition("?")[0].lstrip("/")
        data = server.files.get(name)
        with server.lock:
            (server.gets if body else server.heads)[name] += 1
            if body:
                server.order.append(name)
            fault = server.always.get(name) if body else None
            if body and server.broken.get(name):
                fault = server.broken[name].pop(0)
        time.sleep(server.delay)
        if isinstance(fault, int):
            return self._empty(fault)
        if data is None:
            return self._listing(name, body) if name[-1:] in ("", "/") else self._empty(404)
        begin, end, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and server.ranges:
            begin = int(asked[1])
            end = min(int(asked[2]) + 1 if asked[2] else end, end)
            status = 206
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", server.tags[name])
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        if fault == "stall":
            server.released.wait(30)
            self.close_connection = True
            return
        if fault == "close":
            self.wfile.write(data[begin : begin + (end - begin) // 2])
            self.close_connection = True
            return
        with server.lock:
            server.sent[name] += end - begin
        self.wfile.write(data[begin:end])

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _listing(self, folder: str, body: bool) -> None:
        names = {n[len(folder) :].partition("/") for n in self.server.files if n.startswith(folder)}
        if not names:
            return self._empty(404)
        links = "".join(f'<a href="{head}{slash}">x</a>' for head, slash, _ in sorted(names))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(links)))
        self.end_headers()
        if body:
            self.wfile.write(links.encode())


@contextlib.contextmanager
def serving() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="file server")
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
