"""A dataset whose module has many imports; its items contain their time."""

import time

_began = time.perf_counter()
import asyncio  # noqa: E402, F401
import concurrent.futures  # noqa: E402, F401
import ctypes  # noqa: E402, F401
import email.mime.multipart  # noqa: E402, F401
import http.server  # noqa: E402, F401
import logging.config  # noqa: E402, F401
import sqlite3  # noqa: E402, F401
import unittest.mock  # noqa: E402, F401
import xml.dom.minidom  # noqa: E402, F401
import xmlrpc.client  # noqa: E402, F401
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

TOOK = time.perf_counter() - _began


class Items:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        return np.full(1024, TOOK, np.float64)
