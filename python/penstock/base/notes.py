"""Notes on exceptions, also for Python before 3.11."""

from __future__ import annotations

NATIVE = hasattr(BaseException, "add_note")  # since Python 3.11


class _Plain(str):
    """A text whose repr is the text itself, because KeyError shows the repr of its key."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def add_note(error: BaseException, note: str) -> None:
    """Add `note` to `error` once: as a note, or before Python 3.11 at the end of its text."""
    known = list(getattr(error, "__notes__", ()))
    if note in known:
        return
    if NATIVE:
        error.add_note(note)  # type: ignore[attr-defined]  # mypy: as of 3.10
        return
    error.__notes__ = [*known, note]  # type: ignore[attr-defined]  # for libraries that read it
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror}\n\n{note}"
    elif len(error.args) == 1:
        text = repr(error.args[0]) if isinstance(error, KeyError) else str(error.args[0])
        error.args = (_Plain(f"{text}\n\n{note}"),)
    else:
        error.args = (*error.args, _Plain(f"\n\n{note}"))
