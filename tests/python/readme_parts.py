"""Set-up and checks for the README's examples: a part before each block of Python, one at the end.

Not a test module; test_docs.py runs it with the README's blocks between the parts.
"""

import numpy as np

import penstock


class Pictures:
    def __len__(self):
        return 256

    def __getitem__(self, i):
        return np.full((8, 8), i, np.float32), i % 10


dataset = Pictures()

# %% PyTorch
assert feed.stats()["delivered"] == 4 and x.shape == (64, 8, 8)
feed.close()

# %% Keras
import torch

assert isinstance(x, torch.Tensor) and x.shape == (64, 8, 8)

import keras


class MySequence(keras.utils.Sequence):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.ones((64, 8), np.float32), np.ones(64)


model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")

# %% JAX
assert len(model.history.epoch) == 5

# %% files
import jax

assert isinstance(x, jax.Array) and x.shape == (64, 8, 8)

with penstock.TFRecordWriter("train-0.tfrecord") as writer:
    for i in range(128):
        writer.write(penstock.example({"image": bytes(64), "label": i}))


def decode_and_augment(element):
    image = np.frombuffer(element["image"], np.uint8).reshape(8, 8)
    return {"image": image + penstock.rng().random(), "label": element["label"]}


# %% several hosts
assert batch["image"].shape == (64, 8, 8) and len(train) == 2

# %% workers on several hosts
assert callable(train_loop)  # it runs in workers of Ray Train only

dataset = np.ones((256, 8), np.float32)

# %% asynchronous training
assert len(feed) == 4
feed.close()  # its workers start with the first batch

from penstock import train

parameters = train.Parameters({"w": (8, 2), "b": (2,)})
read = []


def act(w, b):
    read.append((w.shape, b.shape))


# %%
assert read == [((8, 2), (2,))] and version == 0
