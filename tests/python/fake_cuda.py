"""The CUDA driver for tests, tests/cpp/device/fake_driver.cc, and a consumer of its own for it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "cpp" / "device" / "fake_driver.cc"
FIRST = 1  # the legacy default stream


def build(folder: Path) -> Path:
    """Compile the driver; return the library's path."""
    library = folder / "libfake_cuda.so"
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "the tests need a C++ compiler"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True, timeout=120)
    return library


class Driver:
    """What a test sets and reads of the driver."""

    def __init__(self, library: Path) -> None:
        self.library = str(library)
        self._c = ctypes.CDLL(self.library)
        self._c.fake_get.restype = ctypes.c_long
        self._c.fake_set.argtypes = [ctypes.c_char_p, ctypes.c_long]
        pointer = ctypes.c_void_p
        self._c.fake_read.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, ctypes.c_long]
        self._c.fake_finish.argtypes = [pointer]

    def set(self, name: str, to: int) -> None:
        self._c.fake_set(name.encode(), to)

    def get(self, name: str) -> int:
        return int(self._c.fake_get(name.encode()))

    def reset(self) -> None:
        for name in ("fail", "fail cuMemcpyHtoDAsync", "fail cuMemHostAlloc"):
            self.set(name, 0)
        for name in ("copy_us", "alloc_us", "pin_us_per_mib"):
            self.set(name, 0)
        self.set("device_memory", 1 << 32)
        self.set("pinned_memory", 1 << 32)

    def finish(self) -> None:
        """Wait for the default stream."""
        self._c.fake_finish(FIRST)

    def read(self, place: int, shape: tuple[int, ...], dtype: np.dtype, us: int = 0) -> np.ndarray:
        """Read device memory on the default stream, after all that was enqueued there."""
        out = np.empty(shape, dtype)
        self._c.fake_read(FIRST, out.ctypes.data, place, out.nbytes, us)
        self._c.fake_finish(FIRST)
        return out


class _RawTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Managed._fields_ = (
    ("tensor", _RawTensor),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))),
)

_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}


class Tensor:
    """A tensor of a framework that there is no GPU for: takes and ends DLPack's struct."""

    driver: Driver  # set by the fixture

    def __init__(self, capsule) -> None:
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        place = api.PyCapsule_GetPointer(capsule, b"dltensor")
        self._used_name = b"used_dltensor"
        api.PyCapsule_SetName(capsule, self._used_name)
        self._managed = ctypes.cast(place, ctypes.POINTER(_Managed))
        raw = self._managed.contents.tensor
        self.device = f"cuda:{raw.device_id}"
        self.shape = tuple(raw.shape[i] for i in range(raw.ndim))
        kind = _KINDS[raw.code]
        self.dtype = np.dtype("bool" if kind == "b" else f"{kind}{raw.bits // 8}")
        self.place = raw.data

    @classmethod
    def all_of(cls, staged) -> list[Tensor]:
        """Take a batch on the default stream."""
        return [cls(capsule) for capsule in staged.take(FIRST)]

    def view(self, dtype) -> Tensor:
        """Name another dtype of torch; `numpy` still returns the integers."""
        self.torch_dtype = dtype
        return self

    def numpy(self, us: int = 0) -> np.ndarray:
        return self.driver.read(self.place, self.shape, self.dtype, us)

    def __del__(self) -> None:
        managed, self._managed = getattr(self, "_managed", None), None
        if managed:
            managed.contents.deleter(managed)
