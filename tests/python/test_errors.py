"""Exceptions: their kinds, and how they are sent from a worker to the consumer."""

from __future__ import annotations

import errno
import pickle
import sys
import threading
import types

import numpy as np
import pytest

import penstock
from penstock import errors

KINDS = {
    errors.InvalidArgument: ValueError,
    errors.OutOfMemory: MemoryError,
    errors.DataLoss: errors.Error,
    errors.NotFound: (FileNotFoundError, KeyError, LookupError),
    errors.Closed: errors.Error,
    errors.Timeout: TimeoutError,
    errors.WorkerLost: RuntimeError,
    errors.System: OSError,
    errors.Internal: errors.Error,
}


class OddConstructor(Exception):
    def __init__(self, first: int, *, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Decorating(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(f"<{text}>")


class WithLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Plain:
    pass


class WithState(ValueError):
    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class LeavingText(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class LocalText(Exception):
    def __str__(self) -> str:
        class Text(str):
            def __reduce__(self) -> str:
                raise TypeError("not to be pickled")

        return Text(threading.get_native_id())


class BrokenReduce(Exception):
    def __init__(self, text: str, reason: type[BaseException]) -> None:
        super().__init__(text, reason)
        self.reason = reason

    def __reduce__(self) -> str:
        raise self.reason("no pickling")


class BrokenParts(Exception):
    @property
    def args(self) -> tuple[object, ...]:
        raise ValueError("no arguments")

    @property
    def __notes__(self) -> list[str]:
        raise SystemExit("no notes") from None

    def __reduce__(self) -> str:
        raise SystemExit("no pickling")


def there_and_back(exception: BaseException, **place: object) -> BaseException:
    try:
        raise exception
    except BaseException as raised:
        packed = errors.pack_exception(raised, **place)  # type: ignore[arg-type]
    assert isinstance(packed, bytes)
    return errors.unpack_exception(packed)


@pytest.mark.parametrize(("kind", "builtin"), KINDS.items())
def test_every_kind_is_caught_as_what_python_calls_it(kind, builtin):
    with pytest.raises(builtin, match="text of it") as caught:
        raise kind("the text of it", "some_operation")
    assert isinstance(caught.value, errors.Error)
    assert all(isinstance(caught.value, each) for each in np.atleast_1d(builtin))
    assert caught.value.operation == "some_operation"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_pickling(kind):
    copy = pickle.loads(pickle.dumps(kind("the text of it", "some_operation")))
    assert type(copy) is kind
    assert str(copy) == "the text of it"
    assert copy.operation == "some_operation"


def test_a_system_error_has_the_systems_number(tmp_path):
    name = "n" * 300
    writer = penstock.TFRecordWriter(tmp_path / name)
    with pytest.raises(errors.System) as caught:
        writer.close()
    assert caught.value.errno == errno.ENAMETOOLONG
    assert there_and_back(caught.value).errno == errno.ENAMETOOLONG
    assert pickle.loads(pickle.dumps(caught.value)).errno == errno.ENAMETOOLONG


def test_a_missing_file_is_what_python_calls_it():
    with pytest.raises(FileNotFoundError) as caught:
        penstock.Dataset.tfrecord("/nowhere/x.tfrecord").build()
    assert isinstance(caught.value, errors.NotFound)
    assert caught.value.errno == errno.ENOENT


def test_an_exception_keeps_type_arguments_and_attributes():
    back = there_and_back(WithState("bad", code=7))
    assert type(back) is WithState
    assert back.args == ("bad",)
    assert back.code == 7


def test_the_cause_shows_where_it_happened():
    back = there_and_back(KeyError("gone"), worker="worker 2", epoch=1, index=37)
    assert type(back) is KeyError
    cause = back.__cause__
    assert isinstance(cause, errors.WorkerTraceback)
    assert (cause.worker, cause.epoch, cause.index) == ("worker 2", 1, 37)
    assert str(cause).startswith("in worker 2, epoch 1, index 37:")
    assert "raise exception" in str(cause)
    assert str(pickle.loads(pickle.dumps(cause))) == str(cause)


def test_the_traceback_shows_the_causes_of_the_cause():
    try:
        try:
            raise OSError("disk on fire")
        except OSError as error:
            raise ValueError("no sample") from error
    except ValueError as raised:
        back = errors.unpack_exception(errors.pack_exception(raised))
    assert "disk on fire" in str(back.__cause__)


def test_the_context_comes_along_if_it_can_be_rebuilt():
    def after(before: BaseException) -> BaseException:
        try:
            try:
                raise before
            except type(before):
                raise KeyError("second")  # noqa: B904
        except KeyError as raised:
            return errors.unpack_exception(errors.pack_exception(raised))

    back = after(ValueError("first"))
    assert isinstance(back.__context__, ValueError)
    assert str(back.__context__) == "first"
    assert after(ValueError(threading.Lock())).__context__ is None


def test_the_traceback_leaves_out_the_frames_of_the_package():
    scope: dict[str, types.FunctionType] = {}
    inside = errors.__file__.replace("errors.py", "_made_up.py")
    exec(compile("def call_user_code(f): f()", inside, "exec"), scope)

    def user_code() -> None:
        raise ValueError("mine")

    try:
        raise_from = scope["call_user_code"]
        exec(compile("def call_user_code(f): g(f)", inside, "exec"), {"g": raise_from}, scope)
        scope["call_user_code"](user_code)
    except ValueError as raised:
        # The first frame is the test's; in a worker it is the package's.
        error = raised.with_traceback(raised.__traceback__.tb_next)
        text = str(errors.unpack_exception(errors.pack_exception(error)).__cause__)
    assert "user_code" in text
    assert "_made_up.py" not in text


def test_an_odd_constructor_is_no_obstacle():
    exception = OddConstructor(1, second=2)
    exception.extra = [3]
    back = there_and_back(exception)
    assert type(back) is OddConstructor
    assert str(back) == "1 and 2"
    assert back.args == exception.args
    assert back.extra == [3]


def test_a_constructor_that_decorates_its_text_is_not_called_twice():
    back = there_and_back(Decorating("x"))
    assert type(back) is Decorating
    assert str(back) == "<x>"


def test_addresses_in_the_text_are_no_obstacle():
    back = there_and_back(ValueError(Plain()))
    assert type(back) is ValueError
    assert type(back.args[0]) is Plain


def test_what_cannot_be_rebuilt_is_named():
    exception = WithLock("locked")
    back = there_and_back(exception)
    assert type(back) is errors.RemoteError
    assert isinstance(back, RuntimeError)
    assert type(exception).__qualname__ in str(back)
    assert str(exception) in str(back)
    assert back.type_name.endswith(type(exception).__qualname__)
    assert "raise exception" in str(back.__cause__)


@pytest.mark.parametrize("kind", [BrokenText, LeavingText])
def test_packing_never_raises(kind):
    back = there_and_back(kind("x"))
    assert kind.__name__ in back.type_name


def test_a_text_that_cannot_be_pickled_is_no_obstacle():
    assert type(there_and_back(LocalText("x"))) is LocalText


def test_a_context_without_text_takes_nothing_with_it():
    exception = ValueError("second")
    exception.__context__ = LeavingText("first")
    back = errors.unpack_exception(errors.pack_exception(exception))
    assert (type(back), str(back), back.__context__) == (ValueError, "second", None)


@pytest.mark.parametrize("reason", [ValueError, SystemExit, GeneratorExit])
def test_a_reduce_that_raises_is_no_obstacle(reason):
    exception = BrokenReduce("of it", reason)
    exception.extra = [3]
    back = there_and_back(exception)
    assert type(back) is BrokenReduce
    assert (back.args, back.extra) == (exception.args, [3])


def test_notes_and_arguments_that_raise_are_no_obstacle():
    back = there_and_back(BrokenParts("x"))
    assert "BrokenParts" in back.type_name


class LeavingLater(Exception):
    leaves = False

    def __setstate__(self, state: object) -> None:
        if self.leaves:
            raise SystemExit("not here")


def test_what_leaves_while_it_is_rebuilt_is_named(monkeypatch):
    error = LeavingLater("text")
    error.more = 1  # so that it has a state
    packed = errors.pack_exception(error)
    monkeypatch.setattr(LeavingLater, "leaves", True)
    unpacked = errors.unpack_exception(packed)
    assert type(unpacked) is errors.RemoteError
    assert "LeavingLater" in str(unpacked)


def test_ctrl_c_is_let_through():
    with pytest.raises(KeyboardInterrupt):
        errors.pack_exception(BrokenReduce("x", KeyboardInterrupt))


def test_a_class_from_nowhere_in_particular_is_the_same_class_again():
    class Local(Exception):
        pass

    back = there_and_back(Local("here"))
    assert type(back) is Local


def test_a_class_that_only_the_worker_has_is_named(monkeypatch):
    module = types.ModuleType("only_in_the_worker")
    exec("class Special(Exception): pass", vars(module))
    module.Special.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    packed = errors.pack_exception(module.Special("rare"))
    monkeypatch.delitem(sys.modules, module.__name__)
    back = errors.unpack_exception(packed)
    assert isinstance(back, Exception)
    assert str(back) in ("rare", "only_in_the_worker.Special: rare")


@pytest.mark.parametrize("exception", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_exceptions_that_are_not_errors_travel_too(exception):
    back = there_and_back(exception)
    assert type(back) is type(exception)
    assert back.args == exception.args


def test_texts_with_bytes_that_are_not_text_hide_what_urls_have():
    error = errors.InvalidArgument("https://me:secret@host/\udcff?token=secret")
    assert str(error) == "https://host/\udcff?..."
