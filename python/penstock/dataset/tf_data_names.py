"""Names of tf.data that `Dataset` does not have, and the replacement that their error names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

REPLACEMENTS = {
    "apply": "function(dataset)",
    "as_numpy_iterator": "iter(dataset), whose elements are NumPy arrays",
    "bucket_by_sequence_length": "bucket_by_length(boundaries, sizes, field=)",
    "choose_from_datasets": "choose_from(choices, inputs)",
    "from_generator": "generator(function)",
    "from_tensor_slices": "arrays(x), or items(x) for a list of elements",
    "from_tensors": "items([x])",
    "get_single_element": "next(iter(dataset))",
    "group_by_window": "bucket_by_length, or filter for each key",
    "ignore_errors": "on_error('skip')",
    "list_files": "files(pattern), or give the pattern to tfrecord, lines, csv, ...",
    "load": "snapshot(path)",
    "random": "range(n) and a map whose function draws from penstock.rng()",
    "reduce": "a for loop over the dataset",
    "rejection_resample": "sample_from(inputs, weights=) with one Dataset for each class",
    "sample_from_datasets": "sample_from(inputs, weights=)",
    "save": "cache(path)",
    "with_options": "build(**options)",
}


def missing(owner: str, name: str) -> AttributeError:
    """Return the error for an attribute that `owner` lacks."""
    text = f"{owner} has no attribute {name!r}"
    if name in REPLACEMENTS:
        text += f" of tf.data; use {REPLACEMENTS[name]} (docs/migrate/from-tf-data.md)"
    return AttributeError(text)


class NamesOfTfData(type):
    """The metaclass of `Dataset`: class methods of tf.data are errors with the replacement."""

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(cls, name: str) -> Any:
            raise missing(f"type object {cls.__name__!r}", name)
