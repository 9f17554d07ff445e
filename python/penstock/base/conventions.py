"""Conventions of public objects: torch's names of their methods, ``with``, and a repr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Restorable:
    """Adds torch's names to a class with ``state()`` and ``restore(state)``."""

    def state(self) -> Any:
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        raise NotImplementedError

    def state_dict(self) -> Any:
        """Return ``state()``; this is torch's name for it."""
        return self.state()

    def load_state_dict(self, state_dict: Any) -> None:
        """Call ``restore(state)``; this is torch's name for it."""
        self.restore(state_dict)


class Closing:
    """Makes a class with ``close()`` a context manager that closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def name_of(source: object) -> str:
    """The name of a source in a repr. Runs no code of the user, and is short."""
    kind = type(source)
    own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return repr(source) if own else str(getattr(source, "__qualname__", kind.__qualname__))


def shown(thing: object, *parts: object, **facts: object) -> str:
    """Return a repr: ``Loader(Samples, batches=5, workers=2)``."""
    named = (f"{name}={value}" for name, value in facts.items())
    return f"{type(thing).__name__}({', '.join([*map(str, parts), *named])})"
