"""Dataset: a source and a chain of transformations, run natively, exact and restorable."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .. import _engine
from ..base.conventions import Closing
from ..base.element_spec import leaf_spec, spec_of_value, with_open_rows, with_rows
from ..base.nests import leaves_of
from ..errors import InvalidArgument
from .chain import Chain
from .file_sources import FileSources
from .interleave import Interleave
from .sources import Sources
from .transformations import Transformations

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..feeds import Feeds
    from ..loader import Loader
    from ..loader.options import RunOptions
    from ..loader.source import SourceInfo
    from .passes import DatasetIterator


_BATCHING = ("batch", "rebatch", "padded_batch", "ragged_batch", "bucket_by_length")
# Calls whose elements are batches where their input's are: what these begin with.
_SAME_ELEMENTS = (
    *("map", "filter", "take", "skip", "shard", "shuffle", "enumerate", "unique", "cache"),
    *("repeat", "prefetch", "on_error", "assert_cardinality", "split_batch"),
)


class Dataset(Sources, FileSources, Transformations, Closing):
    """A pipeline: a source and a chain of transformations.

    Made by one of the class methods (`range`, ...), then by the methods of what these return. A
    Dataset is immutable, and nothing is read before it is iterated over or built.

    Iterating over it is one pass. The workers stay alive between passes, and the n-th pass of one
    Dataset object is epoch n - 1: shuffled anew, with new random numbers. Native stages are run by
    threads of the engine. As soon as a Python function is in the chain it is run by processes, each
    of which can run the whole chain. That holds in front of a stage that is a stream, too, such as
    `filter`. One thread of this process goes through the stream itself, and calls generators, what
    `scan`, `flat_map` and `interleave` are given, and predicates on elements that no function made.

    Notes
    -----
    Any thread may call anything; each iterator belongs to one thread at a time. Datasets pickle, by
    how they were made.

    Examples
    --------
    >>> train = penstock.Dataset.range(1000).map(decode).batch(32)
    >>> for batch in train: ...          # one pass
    >>> feed = train.build(workers=8)    # a Loader, for its options and statistics
    """

    interleave = Interleave()

    def build(self, **options: Unpack[RunOptions]) -> Loader:
        """Return a Loader that feeds this; the same as ``penstock.Loader(dataset, **options)``."""
        from ..loader import Loader

        return Loader(self, **options)

    def _source_info(self, on_error: str) -> SourceInfo:
        """What a Loader runs when this is its source."""
        from ..loader.source import SourceInfo

        plan = self._built(on_error == "skip")
        chain = self._alone()
        return SourceInfo("chain", chain, repr(chain), plan=plan)

    @property
    def element_spec(self) -> Any:
        """What elements (batches, where it is batched) are: a nest of `penstock.TensorSpec`.

        A batch's rows are None unless ``drop_last`` makes all batches full. Where a Python function
        is in the chain, the first element is made, in line and apart from all passes: lengths are
        those that it has, unless `penstock.ragged` or a batch says that they differ.

        Raises
        ------
        InvalidArgument
            There is no first element.
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
        raise InvalidArgument(f"there is no element in {self!r}", "element_spec")

    def _batching(self) -> tuple[str, tuple[Any, ...]] | None:
        """The call that made batches of elements, if these are batches still."""
        chain: Chain = self
        while chain._recipe[0] not in _BATCHING:
            if len(chain._inputs) != 1 or not chain._recipe[0].startswith(_SAME_ELEMENTS):
                return None
            chain = chain._inputs[0]
        return chain._recipe

    def feeds(
        self, n: int, *, patience: float | None = None, **options: Unpack[RunOptions]
    ) -> Feeds:
        """Return n consumers of one engine, a batch for each of n devices: see `Feeds`.

        Parameters
        ----------
        n : int
            Batch i of a pass goes to consumer i mod n.
        patience : float, optional
            Seconds that a consumer waits for another one to take its batches before a `Timeout`
            says for which. None: for ever.
        **options
            Those of `Loader`, but for `ordered`.
        """
        from ..feeds import Feeds

        return Feeds(self, n, patience, **options)

    def cardinality(self) -> float | None:
        """Batches (elements, where nothing is batched) of a pass; ``math.inf``; None: unknown."""
        plan = self._any_built()
        if plan.length is None:
            return None
        if _engine.ENDLESS in (plan.length, plan.rounds):
            return float("inf") if plan.length else 0
        return int(plan.length * plan.rounds)

    def __len__(self) -> int:
        """Batches (elements, where nothing is batched) of a pass.

        Raises
        ------
        TypeError
            It never ends, only running it tells, or there are more than ``sys.maxsize``, which is
            the most that Python's `len` can say.
        """
        count = self.cardinality()
        if count is None or count == float("inf"):
            raise TypeError(f"this Dataset has no length: {self!r}")
        if count > sys.maxsize:
            raise TypeError(f"{count} are more than len() can say: use cardinality()")
        return int(count)

    def __bool__(self) -> bool:
        """True: what is in it, is not looked at."""
        return True

    def __iter__(self) -> DatasetIterator:
        """Begin the next pass: a `DatasetIterator`."""
        return self._passes.begin(self)

    def close(self) -> None:
        """End the workers that passes share; batches that are held stay valid.

        A pass under way raises `Closed`. A later pass starts new workers.
        """
        self._passes.close()
