"""A minute at full speed, workers being killed, leaves memory, descriptors and threads flat."""

from __future__ import annotations

import pytest

from soak import growth, soak


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_minute_at_full_speed_grows_nothing() -> None:
    readings, counts = soak(seconds=60, kill_every=3)
    assert counts["restarts"] >= 10
    assert len(readings) >= 20
    assert not growth(readings)
