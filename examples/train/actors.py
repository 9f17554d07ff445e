"""One learner, and independent actors: each is a command in a terminal of its own.

    python examples/train/actors.py learner
    python examples/train/actors.py actor    # any number, started before or after the learner

The learner learns to balance a pole (Barto, Sutton and Anderson 1983) by evolution strategies
(Salimans et al. 2017) and publishes its weights with every update. An actor plays with the newest
weights, and with slightly changed ones, and sends back how long each balanced, through a channel.
Any process can be killed and restarted: the others continue.
"""

import argparse
import contextlib
import itertools

import numpy as np

from penstock import errors, train

SHAPES = {"w": (4,), "b": ()}
STEPS, PAIRS, NOISE = 200, 8, 0.5


def advance(states, force):
    _, v, angle, turn = np.moveaxis(states, -1, 0)
    push = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
    lever = 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
    turning = (9.8 * np.sin(angle) - np.cos(angle) * push) / lever
    pushed = push - 0.05 * turning * np.cos(angle) / 1.1
    return states + 0.02 * np.stack([v, pushed, turn, turning], -1)


def balanced(w, b, states):  # steps until the pole falls, or the cart leaves the track
    steps, up = np.zeros(len(states)), np.ones(len(states), bool)
    for _ in range(STEPS):
        states = advance(states, np.where((states * w).sum(-1) + b > 0, 10.0, -10.0))
        up &= (np.abs(states[:, 0]) < 2.4) & (np.abs(states[:, 2]) < 0.2)
        steps += up
    return steps


def learner(name, updates):
    parameters = train.Parameters(SHAPES)
    gradients = parameters.gradients()
    updater = train.Updater(parameters, train.Adam(lr=0.3))
    with train.channel(name, capacity=1 << 13, when_full="drop_oldest") as channel:
        for _ in range(updates) if updates else itertools.count():
            version = train.publish(name, parameters)
            games = channel.get(4)
            noise, steps = games["noise"].reshape(-1, 5), games["steps"].reshape(-1)
            if version % 10 == 0:
                print(f"version {version}: {steps.mean():.0f} of {STEPS} steps", flush=True)
            slope = -((steps - steps.mean()) / (steps.std() + 1e-8)) @ noise / NOISE / len(noise)
            gradients["w"], gradients["b"] = slope[:4], slope[4]
            updater.apply(gradients)


def actor(name, rounds):
    rng = np.random.default_rng()
    model = train.attach(name, like=SHAPES, timeout=None)
    channel = train.attach_channel(name, timeout=None, reconnect=True)
    for _ in range(rounds) if rounds else itertools.count():
        noise = np.multiply.outer([1, -1], rng.normal(0, NOISE, (PAIRS, 5))).reshape(-1, 5)
        others = np.append(noise, np.zeros((1, 5)), 0)  # and the unchanged weights
        starts = np.tile(rng.uniform(-0.05, 0.05, (1, 4)), (len(others), 1))
        with model.read() as (version, weights):
            steps = balanced(weights["w"] + others[:, :4], weights["b"] + others[:, 4], starts)
        print(f"version {version}: balanced for {steps[-1]:.0f} steps", flush=True)
        with contextlib.suppress(errors.Timeout):  # there is no learner now
            channel.put({"noise": noise, "steps": steps[:-1]}, timeout=0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["learner", "actor"])
    parser.add_argument("--name", default="pole", help="of the weights and the channel")
    parser.add_argument("--count", type=int, default=0, help="updates, or rounds; 0: until killed")
    given = parser.parse_args()
    {"learner": learner, "actor": actor}[given.role](given.name, given.count)
