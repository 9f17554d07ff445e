#include "python_op.h"

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "elements.h"
#include "gil.h"
#include "penstock/base/error.h"
#include "random.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

std::atomic<bool> rekeys_globals{false};

class Run : public OpRun {
 public:
  Run(const PythonOp& op, Context& context) : op_(op), context_(context) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    call_for_rows(context_, keys, in.alive(), out, row, [&](uint32_t, uint32_t at) {
      return call_with_element(op_.function().take().get(), in, at);
    });
  }

 private:
  const PythonOp& op_;
  Context& context_;
};

bool is_ordinary(PyObject* exception) {
  return PyType_IsSubtype(Py_TYPE(exception), reinterpret_cast<PyTypeObject*>(PyExc_Exception)) !=
         0;
}

}  // namespace

std::string text_of_exception(PyObject* exception) {
  std::string text = Py_TYPE(exception)->tp_name;
  Owned message(PyObject_Str(exception));
  const char* words = message ? PyUnicode_AsUTF8(message.get()) : nullptr;
  if (words != nullptr && *words != 0) text += std::string(": ") + words;
  clear_error();
  return text;
}

bool raised_error() { return PyErr_ExceptionMatches(PyExc_Exception) != 0; }

void clear_error() {
  if (PyErr_Occurred() != nullptr && raised_error()) PyErr_Clear();
}

Raised Raised::take() {
  Raised raised;
  Owned exception = exception_in_flight();
  if (!exception) exception = Owned(Py_NewRef(Py_None));
  raised.text_ = text_of_exception(exception.get());
  raised.is_error_ = is_ordinary(exception.get());
  if (Owned interruption = exception_in_flight(); interruption && raised.is_error_) {
    exception = std::move(interruption);
    raised.text_ = text_of_exception(exception.get());
    PyErr_Clear();  // only one exception is reported
    raised.is_error_ = false;
  }
  raised.exception_ = share(exception.get());
  return raised;
}

Raised Raised::from(PyObject* exception, std::string text, bool is_error) {
  Raised raised;
  raised.exception_ = share(exception);
  raised.text_ = std::move(text);
  raised.is_error_ = is_error;
  return raised;
}

PyObject* exception_of(const Error& error) {
  PyObject* type = helper("penstock.errors", std::string(name_of(error.code())).c_str());
  // The text may quote bytes of a file.
  Owned what(PyUnicode_DecodeUTF8(error.what(), static_cast<Py_ssize_t>(std::strlen(error.what())),
                                  "backslashreplace"));
  if (type == nullptr || !what) return nullptr;
  Owned made(PyObject_CallFunction(type, "Os", what.get(), error.operation().c_str()));
  if (made && error.code() == Code::kSystem && error.error_number() != 0) {
    Owned number(PyLong_FromLong(error.error_number()));
    if (!number || PyObject_SetAttrString(made.get(), "errno", number.get()) != 0) return nullptr;
  }
  return made.release();
}

PyObject* exception_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Raised& raised) {
    return Py_NewRef(raised.exception());
  } catch (const Error& error) {
    PyObject* made = exception_of(error);
    return made != nullptr ? made : exception_in_flight().release();
  } catch (const std::exception& error) {
    PyObject* made = PyObject_CallFunction(PyExc_RuntimeError, "s", error.what());
    return made != nullptr ? made : exception_in_flight().release();
  }
}

void rekey_globals_for_elements() { rekeys_globals = true; }

PyObject* call_with_element(PyObject* function, const Chunk& in, uint32_t row) {
  nb::object element = element_object(in, row, nullptr, false);
  return PyTuple_CheckExact(element.ptr()) ? PyObject_CallObject(function, element.ptr())
                                           : PyObject_CallOneArg(function, element.ptr());
}

std::optional<Failure> call_for_row(Context& context, const Keys& keys, uint32_t j, uint32_t row,
                                    const std::function<void()>& call) {
  // Each operation has its own random numbers.
  const uint64_t seed = derive_key(keys.seed(), keys.operation(), KeyUse::kSamples);
  if (!context.watch->progress(context.row(row), keys.call(j))) {
    throw Error(Code::kClosed, "worker", "the ticket was taken away");
  }
  if (auto error = context.watch->poisoned(context.row(row), keys.call(j))) {
    Failure failure{{}, 0, std::move(error)};
    failure.provisional = true;
    return failure;
  }
  struct Keyed {
    ~Keyed() { clear_ticket_key(); }
  } keyed;
  for (uint32_t n = 0;; ++n) {
    set_ticket_key(seed, keys.epoch(), keys.position(j));
    if (rekeys_globals.load(std::memory_order_relaxed)) {
      rekey_globals(seed, keys.epoch(), keys.position(j));
    }
    try {
      try {
        call();
        return std::nullopt;
      } catch (nb::python_error& error) {
        error.restore();
        throw Raised::take();
      }
    } catch (const Raised& raised) {
      if (!raised.is_error() && context.watch->interrupted(std::current_exception())) throw;
      const bool again = raised.is_error() && n < context.retries;
      context.watch->on_exception(again);
      if (again) continue;
      Failure failure{{}, 0, std::current_exception()};
      if (!raised.is_error()) failure.decision = Decision::kRaise;
      return failure;
    } catch (const Error& error) {
      if (error.code() != Code::kInvalidArgument && error.code() != Code::kDataLoss) throw;
      return Failure{{}, 0, std::current_exception()};
    }
  }
}

void call_for_rows(Context& context, const Keys& keys, uint64_t alive, Chunk& out, uint32_t row,
                   const std::function<PyObject*(uint32_t j, uint32_t row)>& call) {
  WithGil locked;
  release_references();
  for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
    if ((alive >> row & 1) == 0) continue;
    auto failure = call_for_row(context, keys, j, row, [&] {
      StayWhenEnded stay;
      Owned value(call(j, row));
      stay.returned();
      if (!value) throw Raised::take();
      put_element(value.get(), out, row, context.scratch);
    });
    if (failure) out.fail(row, std::move(*failure));
  }
}

std::unique_ptr<OpRun> PythonOp::bind(SpecRef, Context& context) const {
  return std::make_unique<Run>(*this, context);
}

}  // namespace penstock::python
