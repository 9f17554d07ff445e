"""Training with weights in the engine: update, share, publish and serve them.

>>> from penstock import train
>>> parameters = train.Parameters({"w": (784, 10), "b": (10,)})
>>> gradients = parameters.gradients()
>>> updater = train.Updater(parameters, train.Adam(lr=1e-3))
>>> for batch in feed:
...     compute(parameters["w"], parameters["b"], batch, into=gradients)
...     updater.apply(gradients)

The code that computes gradients sees NumPy arrays over the engine's memory.
"""

from __future__ import annotations

from .._engine import Schedule
from .batcher import Batcher
from .batcher_processes import BatcherClient, attach_batcher
from .channel import Channel, Producer, attach_channel, channel
from .client import ParameterClient, Resolver, connect
from .hogwild import Hogwild, HogwildReport
from .loop import Loop, LoopMeasure, LoopReport
from .mqtt import MqttClient, mqtt
from .online import Message, Online, OnlineStep
from .optimizers import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, Optimizer, RMSProp
from .parameters import Parameters, Slab
from .pool import Pool, PoolResult
from .population import MemberResult, MemberState, Population, PopulationRun
from .prediction import Predictions, evaluate, predict
from .publish import Model, attach, publish, unpublish
from .sequences import Stateful, StatefulBatch
from .server import ParameterServer
from .steps import Rows, Views
from .towers import Towers, TowersReport
from .updater import Updater

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Batcher",
    "BatcherClient",
    "Channel",
    "Hogwild",
    "HogwildReport",
    "Loop",
    "LoopMeasure",
    "LoopReport",
    "MemberResult",
    "MemberState",
    "Message",
    "Model",
    "Momentum",
    "MqttClient",
    "Nesterov",
    "Online",
    "OnlineStep",
    "Optimizer",
    "ParameterClient",
    "ParameterServer",
    "Parameters",
    "Pool",
    "PoolResult",
    "Population",
    "PopulationRun",
    "Predictions",
    "Producer",
    "RMSProp",
    "Resolver",
    "Rows",
    "Schedule",
    "Slab",
    "Stateful",
    "StatefulBatch",
    "Towers",
    "TowersReport",
    "Updater",
    "Views",
    "attach",
    "attach_batcher",
    "attach_channel",
    "channel",
    "connect",
    "evaluate",
    "mqtt",
    "predict",
    "publish",
    "unpublish",
]
