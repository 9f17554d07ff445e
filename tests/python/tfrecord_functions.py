"""Functions for the tests of Dataset.tfrecord, in a module that workers can import."""

from __future__ import annotations

from typing import Any

import numpy as np

import penstock


def decode_and_augment(sample: dict[str, Any]) -> dict[str, Any]:
    """Converts the bytes to an image, shifted by a random number; other fields are unchanged."""
    image = np.frombuffer(sample["image"], np.uint8).astype(np.float32)
    return {**sample, "image": image.sum() + penstock.rng().random(dtype=np.float32)}


def refuses_third(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["label"] % 10 == 3:
        raise ValueError(f"no {sample['label']}")
    return sample


def bytes_of(record: bytes) -> int:
    return len(record)


def refuses_nothing(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def is_even(sample: dict[str, Any]) -> bool:
    return bool(sample["label"] % 2 == 0)
