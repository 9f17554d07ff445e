"""What public objects have in common: other names of their methods, ``with``, and a repr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Restorable:
    """For what has ``state()`` and ``restore(state)``: the same by torch's names."""

    def state(self) -> Any:
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        raise NotImplementedError

    def state_dict(self) -> Any:
        """Return what ``state()`` does, by the name that torch has for it."""
        return self.state()

    def load_state_dict(self, state_dict: Any) -> None:
        """Do what ``restore(state)`` does, by the name that torch has for it."""
        self.restore(state_dict)


class Closing:
    """For what has ``close()``: a context manager that closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def name_of(source: object) -> str:
    """What a source is called in a repr: nothing of the user's is run, or printed at length."""
    kind = type(source)
    own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return repr(source) if own else str(getattr(source, "__qualname__", kind.__qualname__))


def shown(thing: object, *parts: object, **facts: object) -> str:
    """Return a repr: ``Loader(Samples, batches=5, workers=2)``."""
    named = (f"{name}={value}" for name, value in facts.items())
    return f"{type(thing).__name__}({', '.join([*map(str, parts), *named])})"
