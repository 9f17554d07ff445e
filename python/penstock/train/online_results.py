"""Where Online's results go: a function of the user, a file, or a topic of an MQTT broker."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.arguments import path
from ..base.nests import mapped
from ..errors import InvalidArgument
from .mqtt import MqttClient
from .rows import array_of


class Results:
    """A function of the user, or none."""

    def __init__(self, function: Callable[[Any], object] | None) -> None:
        self._function = function

    def put(self, step: Any) -> None:
        if self._function is not None:
            self._function(step)

    def close(self) -> None:
        pass


class FileResults(Results):
    """A line of JSON for each batch."""

    def __init__(self, name: str) -> None:
        super().__init__(None)
        self._file = Path(name).open("a", encoding="utf-8")  # noqa: SIM115

    def put(self, step: Any) -> None:
        print(_json(step), file=self._file, flush=True)

    def close(self) -> None:
        self._file.close()


class TopicResults(Results):
    """A message of JSON for each batch."""

    def __init__(self, client: MqttClient) -> None:
        super().__init__(None)
        topics = client.topics
        if len(topics) != 1 or any(each in topics[0] for each in "+#"):
            raise InvalidArgument(
                f"on_batch is a client of {len(topics)} topics; give one topic without wildcards",
                "Online",
            )
        self._client, self._topic = client, topics[0]

    def put(self, step: Any) -> None:
        self._client.publish(self._topic, _json(step))


def results_of(on_batch: Any) -> Results:
    if on_batch is None or callable(on_batch):
        return Results(on_batch)
    if isinstance(on_batch, MqttClient):
        return TopicResults(on_batch)
    return FileResults(path(on_batch, "Online"))


def _json(step: Any) -> str:
    line = {
        "offset": step.offset,
        "messages": len(step.messages),
        "loss": step.loss,
        "age": float(step.ages.max()),
        "predictions": mapped(lambda leaf: array_of(leaf).tolist(), step.predictions),
    }
    try:
        return json.dumps(line, allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        return json.dumps(mapped(_finite, line))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
