"""Keras' ImageDataGenerator, whose batches the engine makes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.legacy.preprocessing import image as legacy

from .. import image as operations
from ..base.arguments import one_of
from ..dataset import Dataset
from ..dataset.recipe import Operation
from ..errors import InvalidArgument
from ..loader import Loader
from .py_dataset import PyDatasetFeed

__all__ = ["ImageBatches", "ImageDataGenerator"]

_NAME = "keras.ImageDataGenerator"
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box")
_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


class ImageDataGenerator(legacy.ImageDataGenerator):  # type: ignore[misc]
    """Keras' ImageDataGenerator with its arguments and methods; worker threads make the batches.

    Images are decoded, resized, transformed and standardized natively, with the parameters' meaning
    in Keras: a pixel differs by 1 at most where the parameters are equal. Which parameters an image
    gets depends on `seed`, the epoch and the image, and not on the workers.

    The differences to Keras:

    - `dtype` is float32, and `interpolation_order` 0 or 1.
    - `flow`, `flow_from_directory` and `flow_from_dataframe` return `ImageBatches`, and take the
      options of `penstock.Dataset.build` too, such as ``workers=4``.
    - Statistics of `fit` count for the batches of a later `flow`.
    - A `preprocessing_function` is Python, so worker processes run it; give
      ``use_multiprocessing=False`` for threads. It gets images of float32, and returns such images.
    - `fit`, `random_transform`, `apply_transform` and `standardize` are Keras' own.

    Raises
    ------
    ValueError
        As Keras' class.
    InvalidArgument
        An argument is not supported, or cannot be.

    Examples
    --------
    >>> generator = penstock.keras.ImageDataGenerator(
    ...     rotation_range=20, width_shift_range=0.1, horizontal_flip=True, rescale=1 / 255
    ... )
    >>> model.fit(generator.flow_from_directory("train", target_size=(224, 224)), epochs=5)
    """

    def flow(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        sample_weight: Any = None,
        seed: int | None = None,
        save_to_dir: str | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        ignore_class_split: bool = False,
        subset: str | None = None,
        **options: Any,
    ) -> ImageBatches:
        """Return batches of images in memory, as Keras' `flow` does."""
        parts = list(x) if isinstance(x, (tuple, list)) else [x]
        images = np.asarray(parts[0])
        if images.dtype not in (np.uint8, np.float32):
            images = images.astype(np.float32)
        # Keras checks and splits a stand-in of the images' shape, without a copy of them.
        about = super().flow(
            [np.broadcast_to(np.float32(0), images.shape), *parts[1:]]
            if parts[1:]
            else np.broadcast_to(np.float32(0), images.shape),
            y,
            batch_size,
            shuffle,
            sample_weight,
            seed,
            ignore_class_split=ignore_class_split,
            subset=subset,
        )
        cut = 0 if subset == "validation" else len(images) - about.n
        images = np.ascontiguousarray(images[cut : cut + about.n])
        weights = None if sample_weight is None else np.asarray(sample_weight)[cut : cut + about.n]

        def complete(made: Any, index: Any) -> Any:
            inputs = [made, *(part[index] for part in about.x_misc)] if about.x_misc else made
            if about.y is None:
                return inputs
            batch = (inputs, about.y[index])
            return batch if weights is None else (*batch, weights[index])

        dataset = Dataset.arrays({"image": images, "index": np.arange(about.n)})
        saving = _Saving(save_to_dir, save_prefix, save_format)
        return self._batches(dataset, [], about, complete, saving, options)

    def flow_from_directory(
        self,
        directory: Any,
        target_size: tuple[int, int] = (256, 256),
        color_mode: str = "rgb",
        classes: Sequence[str] | None = None,
        class_mode: str | None = "categorical",
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        save_to_dir: str | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        follow_links: bool = False,
        subset: str | None = None,
        interpolation: str = "nearest",
        keep_aspect_ratio: bool = False,
        **options: Any,
    ) -> ImageBatches:
        """Return batches of the images in a folder for each class, as Keras' method does."""
        about = super().flow_from_directory(
            os.fspath(directory),
            target_size,
            color_mode,
            classes,
            class_mode,
            batch_size,
            shuffle,
            seed,
            follow_links=follow_links,
            subset=subset,
        )
        resized = (target_size, interpolation, keep_aspect_ratio)
        saving = _Saving(save_to_dir, save_prefix, save_format)
        return self._of_files(about, about.classes, color_mode, resized, saving, options)

    def flow_from_dataframe(
        self,
        dataframe: Any,
        directory: Any = None,
        x_col: str = "filename",
        y_col: Any = "class",
        weight_col: str | None = None,
        target_size: tuple[int, int] = (256, 256),
        color_mode: str = "rgb",
        classes: Sequence[str] | None = None,
        class_mode: str | None = "categorical",
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        save_to_dir: str | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        subset: str | None = None,
        interpolation: str = "nearest",
        validate_filenames: bool = True,
        **options: Any,
    ) -> ImageBatches:
        """Return batches of the images that a data frame names, as Keras' method does."""
        about = super().flow_from_dataframe(
            dataframe,
            directory,
            x_col,
            y_col,
            weight_col,
            target_size,
            color_mode,
            classes,
            class_mode,
            batch_size,
            shuffle,
            seed,
            subset=subset,
            validate_filenames=validate_filenames,
        )
        resized = (target_size, interpolation, False)
        saving = _Saving(save_to_dir, save_prefix, save_format)
        return self._of_files(about, about.labels, color_mode, resized, saving, options)

    def _of_files(
        self,
        about: Any,
        labels: Any,
        color_mode: str,
        resized: tuple[Any, str, bool],
        saving: _Saving,
        options: dict[str, Any],
    ) -> ImageBatches:
        (height, width), interpolation, keep_aspect_ratio = resized
        one_of("interpolation", interpolation, _INTERPOLATIONS, _NAME)
        if keep_aspect_ratio:
            raise InvalidArgument(
                "keep_aspect_ratio=True is not supported; penstock.Dataset.image_folder with "
                "image.resize and image.center_crop can cut images",
                _NAME,
            )
        if about.n == 0:
            raise InvalidArgument(
                "there are no images; see the folder, subset= and validation_split", _NAME
            )
        weights, mode = about.sample_weight, about.class_mode

        def complete(made: Any, index: Any) -> Any:
            if mode is None:
                return made
            if mode == "input":
                y = made.copy()
            elif mode == "multi_output":
                y = [output[index] for output in labels]
            elif mode == "raw":
                y = labels[index]
            elif mode == "categorical":
                y = np.zeros((len(made), len(about.class_indices)), self.dtype)
                for row, place in enumerate(index):  # several labels, if a data frame has lists
                    y[row, labels[place]] = 1
            else:
                y = np.asarray(labels)[index].astype(self.dtype)
            return (made, y) if weights is None else (made, y, weights[index])

        dataset = Dataset.files(list(about.filepaths), labels=range(about.n))
        decoded = [
            operations.decode(_CHANNELS[color_mode], exif=False, fields="bytes"),
            operations.resize(height, width, filter=interpolation, fields="bytes"),
        ]
        if self.data_format == "channels_first":
            decoded.append(operations.to_chw(fields="bytes"))
        return self._batches(dataset, decoded, about, complete, saving, options)

    def _batches(
        self,
        dataset: Dataset,
        decoded: list[Operation],
        about: Any,
        complete: Callable[[Any, Any], Any],
        saving: _Saving,
        options: dict[str, Any],
    ) -> ImageBatches:
        field = "bytes" if decoded else "image"
        seed = int(np.random.randint(1 << 31)) if about.seed is None else int(about.seed)
        if about.shuffle:
            dataset = dataset.shuffle(seed=seed)
        for operation in [*decoded, *self._operations(field)]:
            dataset = dataset.map(operation)
        dataset = dataset.batch(about.batch_size)
        index = "label" if decoded else "index"
        whitening = self._whitening()

        def batch_of(made: Any) -> Any:
            images = made[field]
            if whitening is not None:
                images = (images.reshape(len(images), -1) @ whitening).reshape(images.shape)
            saving.save(images, self.data_format)
            return complete(images, made[index])

        options.setdefault("seed", seed)
        options.setdefault("max_queue_size", 10)
        return ImageBatches(Loader(dataset, **options), batch_of, about)

    def _operations(self, field: str) -> list[Any]:
        """Return the operations on single images."""
        standardization = self._standardization()
        nothing = {
            "rescale": 1.0,
            "center": False,
            "std": False,
            "feature_mean": [],
            "feature_std": [],
        }
        if self.preprocessing_function is None:
            return [self._operation(self._ranges(), standardization, field)]
        function = self.preprocessing_function

        def preprocess(element: Any) -> Any:
            made = np.asarray(function(np.array(element[field])), np.float32)
            return {**element, field: made}

        return [
            self._operation(self._ranges(), nothing, field),
            preprocess,
            self._operation(None, standardization, field),
        ]

    def _operation(self, ranges: Any, standardization: dict[str, Any], field: str) -> Operation:
        if self.interpolation_order not in (0, 1):
            raise InvalidArgument(
                f"interpolation_order is {self.interpolation_order!r}; give 0 or 1", _NAME
            )
        if np.dtype(self.dtype) != np.float32:
            raise InvalidArgument(f"dtype is {self.dtype!r}; give 'float32'", _NAME)
        return Operation(
            "image_keras",
            ranges,
            self.fill_mode,
            float(self.cval),
            "bilinear" if self.interpolation_order else "nearest",
            standardization,
            self.data_format == "channels_first",
            field,
        )

    def _ranges(self) -> dict[str, Any]:
        brightness = self.brightness_range
        return {
            "rotation": float(self.rotation_range),
            "height_shift": _shift_of(self.height_shift_range),
            "width_shift": _shift_of(self.width_shift_range),
            "shear": float(self.shear_range),
            "zoom": [float(each) for each in self.zoom_range],
            "horizontal_flip": bool(self.horizontal_flip),
            "vertical_flip": bool(self.vertical_flip),
            "channel_shift": float(self.channel_shift_range),
            "brightness": None if brightness is None else [float(each) for each in brightness],
        }

    def _standardization(self) -> dict[str, Any]:
        def fitted(wanted: bool, value: Any, name: str) -> list[float]:
            if not wanted:
                return []
            if value is None:
                warnings.warn(f"{name} has no effect before fit(data)", stacklevel=5)
                return []
            return [float(each) for each in np.ravel(value)]

        return {
            "rescale": float(self.rescale or 1),
            "center": bool(self.samplewise_center),
            "std": bool(self.samplewise_std_normalization),
            "feature_mean": fitted(self.featurewise_center, self.mean, "featurewise_center"),
            "feature_std": fitted(
                self.featurewise_std_normalization, self.std, "featurewise_std_normalization"
            ),
        }

    def _whitening(self) -> Any:
        if not self.zca_whitening:
            return None
        if self.zca_whitening_matrix is None:
            warnings.warn("zca_whitening has no effect before fit(data)", stacklevel=4)
            return None
        return np.asarray(self.zca_whitening_matrix, np.float32)


def _shift_of(given: Any) -> tuple[list[float], float, bool]:
    """Return (choices, most, relative): Keras chooses of a list or below an int."""
    if np.ndim(given) or isinstance(given, (int, np.integer)):
        choices = np.atleast_1d(given) if np.ndim(given) else np.arange(given)
        return [float(each) for each in choices], 0.0, bool(np.size(given) and np.max(given) < 1)
    return [], float(given), float(given) < 1


class _Saving:
    """Where the batches' images are written, if anywhere."""

    def __init__(self, folder: str | None, prefix: str, form: str) -> None:
        self.folder, self.prefix, self.form = folder, prefix, form
        self.saved = 0

    def save(self, images: Any, data_format: str) -> None:
        if self.folder is None:
            return
        for one in images:
            image = keras.utils.array_to_img(one, data_format, scale=True)
            image.save(os.path.join(self.folder, f"{self.prefix}_{self.saved}.{self.form}"))
            self.saved += 1


class ImageBatches(PyDatasetFeed):
    """Batches of an `ImageDataGenerator` for ``fit``, ``evaluate`` and ``predict``.

    A ``for`` is one epoch; `next` goes on across the ends of epochs, as with Keras' iterators. It
    has the attributes of Keras' iterator, such as ``class_indices``, ``classes``, ``filenames``,
    ``samples``, ``n`` and ``batch_size``, and the methods of `penstock.keras.feed`'s result.
    """

    def __init__(self, loader: Loader, batch_of: Callable[[Any], Any], about: Any) -> None:
        super().__init__(loader)
        self._batch_of = batch_of
        self._about = about

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._about, name)

    def _pull(self) -> Any:
        return self._batch_of(super()._pull())

    def __iter__(self) -> Iterator[Any]:
        return map(self._batch_of, super().__iter__())

    def __next__(self) -> Any:
        with self._lock:
            return self._pull()

    def next(self) -> Any:
        """Return the next batch, as ``next(batches)`` does."""
        return self.__next__()
