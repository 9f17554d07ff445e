"""Keyed random numbers for Python code."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from penstock import _engine
from reference_random import words_at


@pytest.fixture(autouse=True)
def _outside_tickets():
    yield
    _engine.clear_ticket_key()


@pytest.fixture
def globals_kept():
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    bits = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(bits)
    np.random.set_state(numpy_state)
    random.setstate(python_state)


def generator(*key):
    return np.random.Generator(_engine.PhiloxBitGenerator(*key))


# ---- the bit generator --------------------------------------------------------------------------


@pytest.mark.parametrize("key", [(0, 0, 0, 0), (7, 1, 5, 3), ((1 << 64) - 1, 1 << 40, 1 << 63, 9)])
def test_the_words_are_philox_at_the_address(key):
    drawn = generator(*key).integers(0, 1 << 32, 1000, dtype=np.uint32)
    assert drawn.tolist() == words_at(*key, 1000)


def test_the_numbers_do_not_depend_on_how_they_are_drawn():
    whole = generator(1, 2, 3, 4).random(5000)
    pieces = generator(1, 2, 3, 4)
    sizes = [1, 2, 3, 100, 0, 61, 1000, 333]
    drawn = np.concatenate([pieces.random(n) for n in sizes])
    np.testing.assert_array_equal(drawn, whole[: sum(sizes)])


def test_mixed_widths_are_the_same_words_in_order():
    words = words_at(3, 0, 1, 2, 8)
    mixed = generator(3, 0, 1, 2)
    assert mixed.integers(0, 1 << 32, dtype=np.uint32) == words[0]
    assert mixed.integers(0, 1 << 64, dtype=np.uint64) == words[1] | words[2] << 32
    assert mixed.random() == ((words[3] | words[4] << 32) >> 11) / (1 << 53)


def test_distributions_look_as_they_should():
    g = generator(11, 0, 0, 0)
    normal = g.standard_normal(1_000_000)
    assert abs(normal.mean()) < 0.005
    assert abs(normal.std() - 1) < 0.005
    counts = np.bincount(g.integers(0, 10, 1_000_000))
    assert np.abs(counts - 100_000).max() < 1800  # six standard deviations
    assert sorted(g.permutation(100)) == list(range(100))


@pytest.mark.parametrize("position", range(4))
def test_neighbouring_addresses_have_nothing_in_common(position):
    base = [5, 6, 7, 8]
    other = list(base)
    other[position] += 1
    a, b = generator(*base).random(100_000), generator(*other).random(100_000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert not (a == b).any()


def test_numpys_interface_outlives_its_object():
    bits = _engine.PhiloxBitGenerator(1, 2, 3)
    capsule, lock = bits.capsule, bits.lock

    class Stand:
        pass

    stand = Stand()
    stand.capsule, stand.lock = capsule, lock
    del bits
    gc.collect()
    np.testing.assert_array_equal(
        np.random.Generator(stand).random(9), generator(1, 2, 3).random(9)
    )


# ---- rng() --------------------------------------------------------------------------------------


def drawn_at(index, count=5):
    _engine.set_ticket_key(1, 2, index)
    return _engine.rng().random(count)


def test_an_index_has_its_own_numbers_and_keeps_them():
    first = drawn_at(3)
    assert not (drawn_at(4) == first).any()
    np.testing.assert_array_equal(drawn_at(3), first)
    expected = words_at(1, 2, 3, 0xFFFFFFFF, 2)
    assert first[0] == ((expected[0] | expected[1] << 32) >> 11) / (1 << 53)


def test_calls_for_one_index_give_one_generator_that_goes_on():
    _engine.set_ticket_key(1, 2, 3)
    one, two = _engine.rng(), _engine.rng()
    assert one is two
    halves = np.concatenate([one.random(2), _engine.rng().random(3)])
    del one, two
    np.testing.assert_array_equal(halves, drawn_at(3))


def test_a_retry_of_an_index_starts_from_its_first_number():
    np.testing.assert_array_equal(drawn_at(3), drawn_at(3))


def test_a_generator_that_somebody_keeps_is_left_alone():
    _engine.set_ticket_key(1, 2, 3)
    kept = _engine.rng()
    kept_bits = kept.bit_generator
    before = kept.random(2)
    _engine.set_ticket_key(1, 2, 4)
    assert _engine.rng() is not kept
    _engine.rng().random(100)
    del kept
    _engine.set_ticket_key(1, 2, 5)
    _engine.rng().random(100)
    after = np.random.Generator(kept_bits).random(3)
    np.testing.assert_array_equal(np.concatenate([before, after]), drawn_at(3))


def test_the_object_is_used_again_when_nobody_keeps_it():
    drawn_at(1)
    where = id(_engine.rng())
    drawn_at(2)
    assert id(_engine.rng()) == where


def test_outside_tickets_the_system_seeds_it():
    outside = _engine.rng()
    assert outside is _engine.rng()
    drawn_at(3)
    _engine.clear_ticket_key()
    assert _engine.rng() is outside
    code = "from penstock import _engine; print(_engine.rng().random())"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 2


def test_threads_share_nothing():
    _engine.set_ticket_key(1, 2, 3)
    mine = _engine.rng()
    seen = []

    def other():
        seen.append(_engine.rng())  # no ticket here
        _engine.set_ticket_key(1, 2, 3)
        seen.append(_engine.rng())
        seen.append(_engine.rng().random(5))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    assert mine not in seen[:2]
    np.testing.assert_array_equal(seen[2], mine.random(5))


def test_a_thread_takes_its_generators_along():
    references = []

    def other():
        _engine.set_ticket_key(1, 2, 3)
        references.append(weakref.ref(_engine.rng().bit_generator))
        _engine.clear_ticket_key()
        references.append(weakref.ref(_engine.rng().bit_generator))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_draws_other_numbers_outside_tickets():
    _engine.rng().random()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, _engine.rng().bytes(16))
        finally:
            os._exit(0)
    os.close(write)
    theirs = os.read(read, 16)
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0
    assert theirs != _engine.rng().bytes(16)


# ---- the global generators ----------------------------------------------------------------------


def global_numbers():
    return (
        np.random.random(3).tolist(),
        np.random.randn(),
        np.random.permutation(5).tolist(),
        random.random(),
        random.gauss(0, 1),
        random.randrange(1 << 100),
    )


def at(*key):
    _engine.rekey_globals(*key)
    return global_numbers()


@pytest.mark.usefixtures("globals_kept")
class TestGlobals:
    def test_they_are_written_in_place(self):
        assert _engine.rekeys_in_place()

    def test_an_index_has_its_own_numbers_and_keeps_them(self):
        runs = {key: at(*key) for key in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)]}
        assert len({str(numbers) for numbers in runs.values()}) == 4
        assert all(at(*key) == numbers for key, numbers in runs.items())

    def test_numpys_and_pythons_are_not_the_same(self):
        _engine.rekey_globals(1, 2, 3)
        assert np.random.random() != random.random()

    def test_the_second_half_of_a_normal_pair_does_not_reach_the_next_index(self):
        expected = at(1, 2, 3)
        np.random.randn()  # the second number of the pair is cached
        random.gauss(0, 1)
        assert at(1, 2, 3) == expected
        for draws in (624, 312, 1248):  # a multiple of the state's words
            _engine.rekey_globals(5, 5, 5)
            np.random.randn()
            np.random.bytes(4 * draws)
            assert at(1, 2, 3) == expected

    def test_a_seed_set_by_the_user_holds_for_its_index_only(self):
        expected = at(1, 2, 4)
        _engine.rekey_globals(1, 2, 3)
        np.random.seed(0)
        random.seed(0)
        assert np.random.random() == np.random.RandomState(0).random()
        assert random.random() == random.Random(0).random()
        assert at(1, 2, 4) == expected

    def test_they_are_twisters_in_a_sound_state(self):
        _engine.rekey_globals(1, 2, 3)
        state = np.random.get_state(legacy=False)
        assert state["state"]["pos"] == 624
        assert state["has_gauss"] == 0
        assert state["state"]["key"][0] >> 31
        copy = np.random.RandomState()
        copy.set_state(state)
        assert copy.random() == np.random.random()
        python = random.Random()
        python.setstate(random.getstate())
        assert python.random() == random.random()
        assert abs(np.random.random(100_000).mean() - 0.5) < 0.006

    def test_first_numbers_of_successive_indices_are_uniform(self):
        firsts = []
        for index in range(20_000):
            _engine.rekey_globals(0, 0, index)
            firsts.append((np.random.random(), random.random()))
        numpys, pythons = np.array(firsts).T
        for numbers in (numpys, pythons):
            counts = np.bincount((numbers * 10).astype(int), minlength=10)
            assert np.abs(counts - 2000).max() < 270  # six standard deviations
            assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.045
        assert abs(np.corrcoef(numpys, pythons)[0, 1]) < 0.045

    @pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.SFC64])
    def test_another_bit_generator_behind_numpys_functions_is_re_keyed_too(self, kind):
        if not hasattr(np.random, "set_bit_generator"):
            pytest.skip("NumPy before 1.24 has one bit generator behind its functions")
        original = at(1, 2, 3)
        np.random.set_bit_generator(kind(99))
        runs = [at(1, 2, 3), at(1, 2, 4), at(1, 2, 3)]
        assert runs[0] == runs[2]
        assert runs[0][0] != runs[1][0]
        np.random.set_bit_generator(np.random.MT19937(5))
        assert at(1, 2, 3) == original

    def test_other_processes_draw_the_same(self):
        code = (
            "import random; import numpy as np; from penstock import _engine;"
            "_engine.rekey_globals(4, 5, 6); print(np.random.random(), random.random())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        _engine.rekey_globals(4, 5, 6)
        assert done.stdout.split() == [repr(float(np.random.random())), repr(random.random())]
