"""A learner in this process, and actors on all nodes of a Ray cluster that play for it.

python examples/ray/actors.py --actors 8

The learner publishes its weights with every update, and a relay brings them to each node. An actor
scores slightly changed weights and puts the changes and their scores into a channel, from which
another relay brings them to the learner: evolution strategies (Salimans et al. 2017). An actor that
ends is started again by Ray, and the others continue.

Needs a cluster of Ray (RAY_ADDRESS names it); without one, Ray starts on this machine.
"""

from __future__ import annotations

import argparse
import contextlib

import numpy as np
import ray

import penstock
from penstock import train

NAME, WEIGHTS, NOISE, PAIRS = "actors", 20, 0.1, 16
BEST = np.linspace(-1, 1, WEIGHTS)  # the learner does not know these


def score(weights: np.ndarray) -> np.ndarray:
    """Any game will do: a score for each row of weights."""
    return -np.square(weights - BEST).sum(-1)


@ray.remote(num_cpus=0.25, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD")
class Actor:
    def play(self) -> None:
        rng = np.random.default_rng()
        # The learner has ended, perhaps before this actor began.
        with contextlib.suppress(penstock.Closed, penstock.Timeout):
            model = train.attach(NAME, timeout=20)
            channel = train.attach_channel(NAME, timeout=20)
            while True:
                half = rng.normal(0, NOISE, (PAIRS, WEIGHTS))
                noise = np.concatenate([half, -half])
                with model.read() as (_, weights):
                    scores = score(weights["w"] + noise)
                channel.put({"noise": noise, "scores": scores})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--updates", type=int, default=300)
    options = parser.parse_args()
    ray.init(log_to_driver=False)
    parameters = train.Parameters({"w": (WEIGHTS,)})
    gradients, updater = parameters.gradients(), train.Updater(parameters, train.Adam(lr=0.02))
    train.publish(NAME, parameters)
    # A small channel that drops the oldest: the learner gets scores of recent weights.
    with (
        train.channel(NAME, capacity=1 << 15, when_full="drop_oldest") as channel,
        penstock.ray.relay(NAME),
        penstock.ray.relay_channel(NAME),
    ):
        actors = [Actor.remote() for _ in range(options.actors)]
        playing = [actor.play.remote() for actor in actors]
        for _ in range(options.updates):
            games = channel.get(4, timeout=60)
            noise, scores = games["noise"].reshape(-1, WEIGHTS), games["scores"].reshape(-1)
            gradients["w"] = -((scores - scores.mean()) / scores.std()) @ noise / len(noise) / NOISE
            updater.apply(gradients)
            train.publish(NAME, parameters)
        channel.close()
        ray.get(playing)
    error = np.abs(parameters["w"] - BEST).max()
    print(f"{options.updates} updates, every weight within {error:.2f} of the best")


if __name__ == "__main__":
    main()
