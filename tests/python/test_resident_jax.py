"""penstock.device.resident with jax: rows that stay on a device, in the order of the host."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import contract

jax = pytest.importorskip("jax")

import penstock  # noqa: E402
import resident_cases as cases  # noqa: E402
from penstock.device import resident  # noqa: E402
from penstock.device.permutation import jax_permuted  # noqa: E402
from penstock.device.words import JaxWords, philox  # noqa: E402

INLINE = {"workers": 0}


@pytest.fixture
def device():
    return jax.devices()[0]


def assert_same(batches, wanted):
    """Equal in every value, with jax's types."""
    batches, wanted = list(batches), [jax.tree.map(_narrow, batch) for batch in wanted]
    contract.assert_same([jax.tree.map(np.asarray, batch) for batch in batches], wanted)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batches))


def _narrow(array):
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


@pytest.mark.parametrize("length", [1, 3, 256, 257, 4097])
def test_the_order_is_that_of_the_engine(length):
    positions = jax.numpy.arange(length, dtype=jax.numpy.uint32)
    for seed, epoch in cases.SEEDS:
        order = jax_permuted(length, seed, epoch, positions)
        wanted = penstock.Permutation(length, seed, epoch).take(0, length)
        assert np.array_equal(np.asarray(order), wanted)


def test_the_order_of_very_many_is_that_of_the_engine():
    length = 2**31 - 1
    positions = np.arange(length - 500, length, dtype=np.uint32)
    wanted = penstock.Permutation(length, 5, 6).take(length - 500, 500)
    assert np.array_equal(np.asarray(jax_permuted(length, 5, 6, positions)), wanted)


def test_philox_gives_the_published_words():
    # A known answer of Random123 (kat_vectors): the digits of pi.
    pi = [jax.numpy.uint32(w) for w in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    words = philox(JaxWords(), pi, (0xA4093822, 0x299F31D0))
    assert [int(w) for w in words] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("max_bytes", [None, 3000], ids=["all fit", "some fit"])
@pytest.mark.parametrize("name", ["shuffled", "a table", "padded shards"])
def test_batches_and_states_are_those_of_the_host(name, max_bytes, device):
    dataset = cases.CHAINS[name]()
    with (
        resident(dataset, device, max_bytes=max_bytes, **INLINE) as kept,
        dataset.build(**INLINE) as host,
    ):
        for _ in range(2):
            assert_same(kept, list(host))
            assert kept.state() == host.state()


def test_a_state_is_restored_amid_an_epoch(device):
    dataset = cases.CHAINS["shuffled"]()
    with resident(dataset, device, **INLINE) as kept, dataset.build(**INLINE) as host:
        assert len(list(host.steps(13))) == 13
        kept.restore(host.state())
        assert_same(kept, list(host))


def test_nothing_crosses_the_link_after_the_rows_were_read(device):
    with resident(cases.CHAINS["shuffled"](), device, **INLINE) as kept:
        for _ in range(3):
            assert len(list(kept)) == 11
            stats = kept.stats()
            assert stats["link_bytes"] == stats["resident_bytes"] == cases.COUNT * 12


def test_several_devices_are_refused(device):
    sharding = jax.sharding.SingleDeviceSharding(device)
    with pytest.raises(penstock.InvalidArgument, match="give one device"):
        resident(cases.rows().batch(8), sharding)


@pytest.mark.slow
def test_rows_are_on_the_device_that_was_named():
    program = """
        import jax, numpy as np, penstock
        rows = penstock.Dataset.arrays(np.arange(300)).shuffle(seed=1).batch(64)
        wanted = [batch.tolist() for batch in rows.build(workers=0)]
        for most in (None, 800):
            for device in jax.devices()[1:3]:
                kept = penstock.device.resident(rows, device, max_bytes=most, workers=0)
                batches = list(kept)
                assert all(batch.devices() == {device} for batch in batches)
                assert [batch.tolist() for batch in batches] == wanted
        print("done")
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env=environment,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.stdout == "done\n", child.stderr
