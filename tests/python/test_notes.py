"""Notes on exceptions before Python 3.11: in the exception's text."""

from __future__ import annotations

import pytest

from penstock.base import notes

NOTE = "in worker 1, epoch 0, index 4:\n\nTraceback (of the worker)"


class Strange(Exception):
    def __init__(self, code: int, place: str) -> None:
        super().__init__(code, place)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("number four"), f"number four\n\n{NOTE}"),
        (KeyError("four"), f"'four'\n\n{NOTE}"),
        (OSError(2, "No such file", "x.png"), f"[Errno 2] No such file\n\n{NOTE}: 'x.png'"),
        (ZeroDivisionError(), NOTE),
        (ValueError(4), f"4\n\n{NOTE}"),
        (Strange(7, "here"), f"(7, 'here', \n\n{NOTE})"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_note_is_in_the_text_where_python_has_no_notes(error, text, monkeypatch):
    monkeypatch.setattr(notes, "NATIVE", False)
    notes.add_note(error, NOTE)
    notes.add_note(error, NOTE)  # once only
    assert str(error).strip() == text
    assert error.__notes__ == [NOTE]


@pytest.mark.skipif(not notes.NATIVE, reason="Python 3.11 brings notes")
def test_a_note_leaves_the_exception_alone_where_python_has_notes():
    error = KeyError("four")
    notes.add_note(error, NOTE)
    notes.add_note(error, NOTE)
    assert error.args == ("four",)
    assert error.__notes__ == [NOTE]
