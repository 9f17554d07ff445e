"""No data of another process or from disk is unpickled: unpickling is disabled here."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)

# Before penstock is imported: modules that import names from these get the refusing functions.
WITHOUT = """
import _pickle, pickle, sys

def refuse(*given, **named):
    raise RuntimeError("something is unpickled")

class Refused:
    def __init__(self, *given, **named):
        refuse()

for module in (_pickle, pickle):
    module.load = module.loads = refuse
    module.Unpickler = Refused
pickle._Unpickler = pickle._load = pickle._loads = refuse
try:
    import cloudpickle
except ImportError:
    pass
else:
    cloudpickle.load = cloudpickle.loads = refuse
for read in (pickle.loads, _pickle.loads, pickle.Unpickler):
    try:
        read(pickle.dumps(1))
    except RuntimeError:
        continue
    sys.exit(f"{read} unpickles")

import numpy as np
from penstock import train
"""


@contextmanager
def started(source: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT + source, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], given: str = "") -> str:
    out, error = process.communicate(given, timeout=100)
    assert process.returncode == 0, error
    assert "unpickled" not in error
    return out


SERVER = """
folder, encrypt = sys.argv[1], sys.argv[2] == "True"
parameters = train.Parameters({"w": (40, 30), "b": (7,)})
options = {"listen": "tcp://127.0.0.1:0", "secret": "a secret of tests", "encrypt": encrypt}
with train.ParameterServer(
    parameters, train.Adam(0.1), shards=2, snapshots=folder, **options
) as server:
    print(*server.addresses, flush=True)
    input()
    print(server.pull(), [shard["pushes"] for shard in server.stats()], flush=True)
"""

CLIENT = """
encrypt = sys.argv[1] == "True"
with train.connect(sys.argv[2:], name="a", secret="a secret of tests", encrypt=encrypt) as client:
    versions = client.pull()
    for _ in range(3):
        client.push({"w": train.Rows([1, 2], np.ones((2, 30))), "b": np.ones(7)})
        client.step(iter([1]), lambda weights, batch: (0.0, dict(weights)))
    print(client.pull(), [shard["workers"][0]["name"] for shard in client.stats()])
"""


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_server_its_client_and_its_snapshots(encrypt: bool, tmp_path: Path) -> None:
    for version in (6, 12):  # the second server continues from the first one's files
        with started(SERVER, tmp_path, encrypt) as server:
            assert server.stdout is not None
            addresses = server.stdout.readline().split()
            with started(CLIENT, encrypt, *addresses) as client:
                assert said(client) == f"[{version}, {version}] ['a', 'a']\n"
            assert said(server, "\n").startswith(f"[{version}, {version}]")
    assert list(tmp_path.iterdir())


LEARNER = """
name = sys.argv[1]
parameters = train.Parameters({"w": (40, 30), "b": (7,)})
with train.channel(name) as channel:
    print("there", flush=True)
    got = []
    while len(got) < 20:
        got += channel.get(min(8, 20 - len(got)), stack=False)
        parameters["w"] += 1
        train.publish(name, parameters)
    numbers = [item["i"] for item in got]
    print(numbers == list(range(20)), got[3]["text"], got[3]["nest"][1].tolist())
    batch = channel.get(1)  # stacked
    print(batch["x"].shape, list(batch["text"]), list(batch["raw"]), flush=True)
    input()
"""

ACTOR = """
name = sys.argv[1]
item = {"x": np.ones(3, np.float32), "text": "some", "nest": (1, np.arange(2)), "raw": b"bytes"}
with train.attach_channel(name) as experience:
    for i in range(21):
        experience.put({"i": i, **item})
    with train.attach(name) as model, model.read() as (_, weights):
        print(weights["w"].min() > 0)
"""


def test_a_learner_that_publishes_and_an_actor() -> None:
    name: Any = f"test-{uuid.uuid4().hex}"
    with started(LEARNER, name) as learner, started(ACTOR, name) as actor:
        assert said(actor) == "True\n"
        lines = said(learner, "\n").splitlines()
    assert lines == ["there", "True some [0, 1]", "(1, 3) ['some'] [b'bytes']"]


FILES = """
path = sys.argv[1]
updaters = [train.Updater(train.Parameters({"w": (4, 3)}), train.Adam(0.1)) for _ in range(2)]
updaters[0].apply({"w": np.ones((4, 3))})
updaters[0].save(path)
updaters[1].load(path)
print(updaters[1].step, train.Parameters.from_file(path)["w"].max() < 0)
"""


def test_an_updaters_file(tmp_path: Path) -> None:
    with started(FILES, tmp_path / "updater.safetensors") as process:
        assert said(process) == "1 True\n"
