"""penstock feeds training: batches made on all cores, in order, without a copy.

>>> import penstock
>>> for x, y in penstock.Loader(dataset, workers=8, use_multiprocessing=True):
...     train(x, y)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "Closed",
    "DataLoss",
    "Dataset",
    "Error",
    "Feedable",
    "Internal",
    "InvalidArgument",
    "Loader",
    "NotFound",
    "OutOfMemory",
    "Permutation",
    "Ragged",
    "RemoteError",
    "System",
    "TFRecordWriter",
    "TarWriter",
    "TensorSpec",
    "Timeout",
    "WorkerLost",
    "WorkerTraceback",
    "__version__",
    "bytes",
    "cast",
    "decode_raw",
    "device",
    "errors",
    "example",
    "float32",
    "image",
    "int64",
    "jax",
    "keras",
    "normalize",
    "parse_example",
    "parse_sequence_example",
    "ragged",
    "ray",
    "remote",
    "remote_files",
    "rng",
    "select",
    "threadsafe",
    "torch",
    "train",
    "write",
]

if TYPE_CHECKING:
    from . import device, errors, image, jax, keras, ray, remote, torch, train
    from ._engine import Permutation, rng
    from .base.element_spec import TensorSpec
    from .base.ragged import Ragged, ragged
    from .base.remote_settings import remote_files
    from .dataset import Dataset
    from .errors import (
        Closed,
        DataLoss,
        Error,
        Internal,
        InvalidArgument,
        NotFound,
        OutOfMemory,
        RemoteError,
        System,
        Timeout,
        WorkerLost,
        WorkerTraceback,
    )
    from .features import bytes, float32, int64, parse_example, parse_sequence_example
    from .feedable import Feedable
    from .files import TarWriter, TFRecordWriter, example
    from .loader import Loader
    from .operations import cast, decode_raw, normalize, select
    from .streams import threadsafe
    from .writers import write

    __version__: str

# Worker processes import this package, too: each module is imported when it is first used.
_HOMES = {
    "Dataset": "dataset",
    "Feedable": "feedable",
    "Loader": "loader",
    "Permutation": "_engine",
    "Ragged": "base.ragged",
    "TFRecordWriter": "files",
    "TarWriter": "files",
    "TensorSpec": "base.element_spec",
    "bytes": "features",
    "cast": "operations",
    "decode_raw": "operations",
    "example": "files",
    "float32": "features",
    "int64": "features",
    "normalize": "operations",
    "parse_example": "features",
    "parse_sequence_example": "features",
    "ragged": "base.ragged",
    "remote_files": "base.remote_settings",
    "rng": "_engine",
    "select": "operations",
    "threadsafe": "streams",
    "write": "writers",
}
_MODULES = ("device", "errors", "image", "jax", "keras", "ray", "remote", "torch", "train")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name in __all__:
        module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
        value = globals()[name] = getattr(module, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
