"""How datasets are sent to worker processes."""

from __future__ import annotations

import enum
import gc
import importlib.util
import io
import os
import pathlib
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from cloudpickle import cloudpickle as tracker

from penstock import errors
from penstock.processes import memfile, payload

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from payload_child import ask

LARGE = 200_000  # more than what is page-aligned


def there_and_back(obj):
    with payload.pack(obj) as packed:
        return payload.unpack(packed.fd)


# ---- what a script, a notebook or a test defines ------------------------------------------------

SCRIPT = """
import abc, collections, dataclasses, enum, functools, sys, typing
import numpy as np
from penstock import errors
from penstock.processes import payload
from payload_child import ask

SCALE = 3
print("imported")

class Color(enum.Enum):
    RED = 1

class Flags(enum.IntFlag):
    A = 1
    B = 2

Point = collections.namedtuple("Point", "x y")

class Named(typing.NamedTuple):
    a: int = 4

@dataclasses.dataclass(frozen=True)
class Record:
    point: Point
    color: Color = Color.RED
    tags: list = dataclasses.field(default_factory=list)

class Base(abc.ABC):
    def __init__(self, size):
        self.size = size
    @abc.abstractmethod
    def __getitem__(self, i): ...
    def helper(self, i, by=SCALE):
        return i * by

class Middle(Base):
    def __init__(self, size):
        super().__init__(size)
        self.child = None

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

def even(n):
    return True if n == 0 else odd(n - 1)

def odd(n):
    return False if n == 0 else even(n - 1)

class Data(Middle):
    __slots__ = ("extra",)
    def __init__(self, size):
        super().__init__(size)
        self.child = Child(self)
        self.record = Record(Point(1, 2), tags=[Flags.A | Flags.B])
        self.function = lambda i: i + SCALE
        self.part = functools.partial(factorial, 4)
        self.bound = self.helper
        self.extra = Named()
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        return super().helper(i)
    def like(self):
        return type(self)(self.size + 1)

class Child:
    def __init__(self, parent):
        self.parent = parent
    def root(self):
        return isinstance(self.parent, Data)

with payload.pack(Data(5)) as packed:
    print(ask(packed, '''{
        "len": len(obj), "item": obj[4],
        "record": (tuple(obj.record.point), obj.record.color.value),
        "enum": obj.record.color is type(obj.record.color)["RED"], "flags": int(obj.record.tags[0]),
        "frozen": hasattr(type(obj.record), "__dataclass_fields__"), "function": obj.function(1),
        "part": obj.part(), "bound": obj.bound.__self__ is obj, "extra": obj.extra.a,
        "child": obj.child.root(), "cycle": obj.child.parent is obj, "like": len(obj.like()),
        "abstract": bool(type(obj).__mro__[2].__abstractmethods__),
        "named": __import__("pickle").dumps(obj.record.point)[:9] != b"",
        "by name": b"Data" in __import__("pickle").dumps(type(obj)),
        "again": "Data" in dir(__import__("__main__")),
    }'''))
with payload.pack((factorial, even)) as packed:
    print(ask(packed, "(obj[0](5), obj[1](7))"))
"""


def run_script(tmp_path, text, *args):
    script = tmp_path / "script.py"
    script.write_text(text)
    here = str(pathlib.Path(__file__).parent)
    return subprocess.run(
        [sys.executable, str(script), *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_a_script_defines_works_in_a_process_that_never_imports_it(tmp_path):
    done = run_script(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported") == 1
    first, second = map(eval, done.stdout.splitlines()[1:])
    assert first == {
        "len": 5, "item": 12, "record": ((1, 2), 1), "enum": True, "flags": 3, "frozen": True,
        "function": 4, "part": 24, "bound": True, "extra": 4, "child": True, "cycle": True,
        "like": 6, "abstract": True, "named": True, "by name": True, "again": True,
    }  # fmt: skip
    assert second == (120, False)


def test_a_module_beside_the_script_is_found_by_the_travelling_path(tmp_path):
    (tmp_path / "beside.py").write_text("class Data:\n    size = 6\n")
    done = run_script(
        tmp_path,
        "import beside\nfrom penstock.processes import payload\nfrom payload_child import ask\n"
        "print(ask(payload.pack(beside.Data()), 'obj.size'))\n",
    )
    assert done.stdout == "6\n", done.stderr


def test_what_a_module_that_no_path_leads_to_defines_travels_by_value(tmp_path, monkeypatch):
    (tmp_path / "hidden.py").write_text(
        "import numpy as np\nSTEP = 2\ndef double(x): return STEP * x\n"
        "class Data:\n    def __getitem__(self, i): return double(i)\n"
    )
    spec = importlib.util.spec_from_file_location("hidden_away", tmp_path / "hidden.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hidden_away", module)
    spec.loader.exec_module(module)
    with payload.pack(module.Data()) as packed:
        assert ask(packed, "obj[21]") == 42
    import cloudpickle

    assert "hidden_away" not in cloudpickle.list_registry_pickle_by_value()


def test_importable_classes_travel_by_name():
    import fractions

    with payload.pack(fractions.Fraction(1, 3)) as packed:
        assert ask(packed, "('cloudpickle' in __import__('sys').modules, str(obj))") == (
            False,
            "1/3",
        )


# ---- broken payloads ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"WRONGMAG" + data[8:],
        lambda data: data[:8] + struct.pack("=Q", 1 << 60) + data[16:],
        lambda data: data[:24] + struct.pack("=QQ", 40, 1 << 63) + data[40:],
        lambda data: data[:40] + struct.pack("=QQ", 64, (1 << 64) - 1) + data[56:],
    ],
)
@pytest.mark.parametrize("by_descriptor", [False, True])
def test_lengths_that_are_not_the_files_are_data_loss(damage, by_descriptor):
    with payload.pack(np.zeros(1000)) as packed:
        data = damage(packed.tobytes())
    if not by_descriptor:
        with pytest.raises(errors.DataLoss):
            payload.unpack(data)
        return
    fd = os.memfd_create("damaged")
    try:
        os.write(fd, data)
        with pytest.raises(errors.DataLoss):
            payload.unpack(fd)
    finally:
        os.close(fd)


def test_no_room_is_an_error_and_leaves_no_descriptor(tmp_path):
    done = run_script(
        tmp_path,
        "import os, resource, numpy as np\n"
        "from penstock import errors\nfrom penstock.processes import payload\n"
        "payload.pack(1).close()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "try:\n    payload.pack(np.zeros(1 << 20))\n"
        "except errors.OutOfMemory as error:\n    print('MB of penstock-dataset' in str(error))\n"
        "print(len(os.listdir('/proc/self/fd')) - before)\n",
    )
    assert done.stdout == "True\n0\n", done.stderr


def test_a_payload_is_closed_with_its_last_reference():
    packed = payload.pack([1])
    fd = packed.fd
    del packed
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


# ---- torch --------------------------------------------------------------------------------------


def test_tensors_travel_out_of_band():
    torch = pytest.importorskip("torch")
    tensors = {
        "float": torch.arange(LARGE, dtype=torch.float32).reshape(100, -1),
        "half": torch.ones(LARGE, dtype=torch.bfloat16),
        "view": torch.arange(LARGE)[::2],
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "complex": torch.ones(LARGE, dtype=torch.complex64).conj(),
        "weights": torch.nn.Parameter(torch.ones(LARGE)),
        "graph": torch.ones(LARGE, requires_grad=True),
    }
    with payload.pack(tensors) as packed:
        pickled, buffers = memfile.read(packed.fd)
        assert pickled.nbytes < 10_000
        assert sum(b.nbytes for b in buffers) > LARGE * 4
        back = payload.unpack(packed.fd)
    for name, tensor in tensors.items():
        assert type(back[name]) is type(tensor)
        assert back[name].dtype == tensor.dtype
        assert back[name].requires_grad == tensor.requires_grad
        assert torch.equal(back[name].detach(), tensor.detach())
    back["float"][0] = 1  # writable


def test_pickling_without_torch_does_not_import_it(tmp_path):
    done = run_script(
        tmp_path,
        "import sys\nfrom penstock.processes import payload\npayload.pack([1]).close()\n"
        "print('torch' in sys.modules)\n",
    )
    assert done.stdout == "False\n", done.stderr


class Shade(enum.Enum):
    DARK = io.SEEK_SET


def test_enum_members_are_the_same_members():
    assert there_and_back(Shade.DARK) is Shade.DARK


CLASSES = """
import io, sys
from penstock.processes.pickler import Pickler

def make(name):
    return type("Local", (), {"__module__": "__main__", name: lambda self: name})

stream = io.BytesIO()
with Pickler(stream, None) as pickler:
    pickler.dump(make(sys.argv[1])())
sys.stdout.buffer.write(stream.getvalue())
"""


def test_classes_of_two_processes_that_have_one_name_stay_apart():
    found = []
    for name in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", CLASSES, name], capture_output=True, check=True
        )
        found.append(pickle.loads(done.stdout))
    first, second = found
    assert first.first() == "first"
    assert second.second() == "second"
    assert not hasattr(first, "second")


def test_a_class_that_was_collected_leaves_its_number_to_no_other():
    def number() -> str:
        class Local:
            pass

        payload.pack(Local).close()
        return tracker._DYNAMIC_CLASS_TRACKER_BY_CLASS[Local]

    first = number()
    gc.collect()
    assert number() != first
