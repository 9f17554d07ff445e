"""The example of actors and a learner, in separately started processes."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "train" / "actors.py"


def test_the_example_is_short():
    assert len(SCRIPT.read_text().splitlines()) < 80


def test_actors_play_better_while_a_learner_learns_and_outlive_it(start):
    name = f"pole-{uuid.uuid4().hex}"

    def until(actor, enough):
        for line in actor.stdout:
            version, steps = map(int, re.findall(r"\d+", line))
            if enough(version, steps):
                return version
        raise AssertionError("the actor has ended")

    early = start(SCRIPT, "actor", "--name", name)
    learner = start(SCRIPT, "learner", "--name", name)
    late = start(SCRIPT, "actor", "--name", name)
    for actor in (early, late):
        until(actor, lambda version, steps: steps >= 150)
    learner.kill()
    learner.wait()
    seen = []
    last = until(early, lambda version, _: seen.append(version) or seen[-3:] == [version] * 3)
    start(SCRIPT, "learner", "--name", name)
    until(early, lambda version, steps: version != last)
    assert late.poll() is None
