"""Dataset: a source and a chain of transformations, run natively, exact and restorable."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _engine
from ..base.conventions import Closing
from ..base.element_spec import leaf_spec, spec_of_value, with_open_rows, with_rows
from ..base.nests import leaves_of
from ..errors import InvalidArgument
from .arrow import ArrowSources
from .chain import Chain
from .file_sources import FileSources
from .interleave import Interleave
from .sources import Sources
from .tf_data_names import NamesOfTfData, missing
from .transformations import Transformations

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..feeds import Feeds
    from ..loader import Loader
    from ..loader.options import RunOptions
    from ..loader.source import SourceInfo
    from .passes import DatasetIterator
    from .row_order import RowOrder


_BATCHING = ("batch", "rebatch", "padded_batch", "ragged_batch", "bucket_by_length")
# Calls whose elements are batches if their input's elements are: prefixes of their names.
_SAME_ELEMENTS = (
    *("map", "filter", "take", "skip", "shard", "shuffle", "enumerate", "unique", "cache"),
    *("repeat", "prefetch", "on_error", "assert_cardinality", "split_batch"),
)


class Dataset(
    Sources, FileSources, ArrowSources, Transformations, Closing, metaclass=NamesOfTfData
):
    """A pipeline: a source and a chain of transformations.

    A class method (`range`, ...) makes the source, and the methods of the result add stages. A
    Dataset is immutable, and nothing is read before it is iterated over or built.

    Iterating over it is one pass. The workers stay alive between passes, and the n-th pass of one
    Dataset object is epoch n - 1, with another order and other random numbers. Threads of the
    engine run native stages. If the chain has a Python function, worker processes run the whole
    chain, also before a stage of a stream such as `filter`. One thread of this process runs the
    stream itself. It calls generators, the functions of `scan`, `flat_map` and `interleave`, and
    predicates on elements that no function made.

    Notes
    -----
    Any thread may call any method; only one thread at a time may use an iterator. A Dataset is
    pickled as the calls that made it.

    Examples
    --------
    >>> train = penstock.Dataset.range(1000).map(decode).batch(32)
    >>> for batch in train: ...          # one pass
    >>> feed = train.build(workers=8)    # a Loader, for its options and statistics
    """

    interleave = Interleave()

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(f"{type(self).__name__!r} object", name)

    def build(self, **options: Unpack[RunOptions]) -> Loader:
        """Return a Loader of this Dataset, the same as ``penstock.Loader(dataset, **options)``."""
        from ..loader import Loader

        return Loader(self, **options)

    def _source_info(self, on_error: str) -> SourceInfo:
        """The plan that a Loader of this Dataset runs."""
        from ..loader.source import SourceInfo

        plan = self._built(on_error == "skip")
        chain = self._alone()
        return SourceInfo(
            "chain",
            chain,
            repr(chain),
            plan=plan,
            functions=chain._functions(),
            no_state=chain._no_state(),
        )

    @property
    def element_spec(self) -> Any:
        """The schema of the elements (or batches): a nest of `penstock.TensorSpec`.

        A batch's number of rows is None unless ``drop_last`` makes all batches full. If the chain
        has a Python function, the schema is inferred from the first element, which is made in line
        and apart from all passes: its lengths are assumed for all elements, unless
        `penstock.ragged` or a batch declares that they differ.

        Raises
        ------
        InvalidArgument
            The Dataset has no element.
        """
        if self._spec is None:
            self._spec = self._find_spec()
        return self._spec

    def _find_spec(self) -> Any:
        plan = self._any_built()
        batching = self._batching()
        known = plan.spec(leaf_spec)
        if known is not None and None not in leaves_of(known):
            if not plan.batched:
                return known
            if batching is not None and not plan.parts:
                method, (rows, *_, drop) = batching
                return with_rows(known, rows if drop and method != "bucket_by_length" else None)
        with self._alone().build(workers=0) as loader:
            for element in loader:
                spec = spec_of_value(element)
                if batching is None or (batching[1][-1] and batching[0] != "bucket_by_length"):
                    return spec
                return with_open_rows(spec)
        raise InvalidArgument(
            f"there is no element in {self!r}; a schema needs one", "element_spec"
        )

    @property
    def class_names(self) -> list[str]:
        """The names of the classes of `image_folder`, in the order of their labels.

        The folder is listed at the call, through any stages behind it; local or by URL.

        Raises
        ------
        InvalidArgument
            No source of the chain is an `image_folder`, or several have other classes.
        NotFound
            There is no such folder, or no folder in it.
        """
        sources = [c._recipe[1] for c in self._chains() if c._recipe[0] == "image_folder"]
        found = [
            list(classes) or _engine.image_classes(root, follow_links)
            for root, classes, _, _, _, _, follow_links, _ in sources
        ]
        if not found:
            raise InvalidArgument(
                f"no source of {self!r} has named classes; image_folder has", "class_names"
            )
        if any(names != found[0] for names in found):
            raise InvalidArgument(
                "the folders have other classes: " + ", ".join(map(repr, found)), "class_names"
            )
        return found[0]

    def _batching(self) -> tuple[str, tuple[Any, ...]] | None:
        """The call that made batches, if the elements are still batches."""
        chain: Chain = self
        while chain._recipe[0] not in _BATCHING:
            if len(chain._inputs) != 1 or not chain._recipe[0].startswith(_SAME_ELEMENTS):
                return None
            chain = chain._inputs[0]
        return chain._recipe

    def feeds(
        self,
        n: int,
        *,
        devices: Sequence[Any] | None = None,
        patience: float | None = None,
        **options: Unpack[RunOptions],
    ) -> Feeds:
        """Return n consumers of one engine, for n devices: see `Feeds`.

        Parameters
        ----------
        n : int
            Batch i of a pass goes to consumer i mod n.
        devices : sequence, optional
            The device of each consumer's batches: one of torch's, as for `penstock.torch.feed`
            (``"cpu"``: tensors in memory), or a jax.Device. None: arrays of NumPy, in memory. A
            batch is sent when its consumer takes it, not ahead.
        patience : float, optional
            Seconds that a consumer waits for a slower one before it raises a `Timeout` that names
            that one. None: no limit.
        **options
            Those of `Loader`, except `ordered`.
        """
        from ..feeds import Feeds

        return Feeds(self, n, patience, devices, **options)

    def _row_order(self, operation: str) -> RowOrder:
        """The chain's rows, and their order in an epoch, for consumers that keep the rows."""
        from .row_order import row_order

        return row_order(self, operation)

    def cardinality(self) -> float | None:
        """Batches (or elements) of a pass; ``math.inf``: endless; None: unknown."""
        plan = self._any_built()
        if plan.length is None:
            return None
        if _engine.ENDLESS in (plan.length, plan.rounds):
            return float("inf") if plan.length else 0
        return int(plan.length * plan.rounds)

    def __len__(self) -> int:
        """Batches of a pass (elements, if nothing is batched).

        Raises
        ------
        TypeError
            The pass is endless, its length is unknown, or the length exceeds ``sys.maxsize``, the
            largest value of Python's `len`.
        """
        count = self.cardinality()
        if count is None or count == float("inf"):
            raise TypeError(f"this Dataset has no length: {self!r}")
        if count > sys.maxsize:
            raise TypeError(f"{count} exceeds the limit of len(): use cardinality()")
        return int(count)

    def __bool__(self) -> bool:
        """True, without computing the length."""
        return True

    def __iter__(self) -> DatasetIterator:
        """Begin the next pass: a `DatasetIterator`."""
        return self._passes.begin(self)

    def close(self) -> None:
        """End the workers that passes share; held batches stay valid.

        A running pass raises `Closed`. A later pass starts new workers.
        """
        self._passes.close()
