"""The other host of bench/cases/remote.py: prints its address, works until it is ended.

python -m cases.remote_program server           a server of remote workers
python -m cases.remote_program neighbour        the same, which shares memory with Loaders here
python -m cases.remote_program stream BYTES N   N pieces of so many bytes, over a plain connection
python -m cases.remote_program made BYTES N     the same, each piece a new array of ones
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile

from harness import keep_heap

SECRET = b"for loopback only"


def server(shares: bool) -> None:
    import penstock

    with tempfile.TemporaryDirectory() as folder:
        if not shares:
            os.environ["XDG_RUNTIME_DIR"] = folder  # Loaders do not find its sockets there
        made = penstock.remote.Server(secret=SECRET)
        print(made.address, flush=True)
        made.wait()


def stream(size: int, count: int, made: bool) -> None:
    import numpy as np

    keep_heap()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        piece: bytes | memoryview = b"\1" * size
        with connection:
            while True:
                try:
                    for _ in range(count):
                        if made:
                            piece = memoryview(np.ones(size // 4, np.float32)).cast("B")
                        connection.sendall(piece)
                except OSError:
                    return


if __name__ == "__main__":
    if sys.argv[1] in ("server", "neighbour"):
        server(shares=sys.argv[1] == "neighbour")
    else:
        stream(int(sys.argv[2]), int(sys.argv[3]), made=sys.argv[1] == "made")
