#include "failure_raiser.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "python_op.h"
#include "sample_calls.h"
#include "ticket_indices.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

// A function of penstock.base.interop.
nb::object interop(const char* name) {
  PyObject* function = helper("penstock.base.interop", name);
  if (function == nullptr) throw nb::python_error();
  return nb::borrow(function);
}

}  // namespace

void raise_exception(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void FailureRaiser::raise(Task& task, const Ticket& ticket) {
  const bool processes = engine_.settings().processes;
  if (!python_workers_ && !processes && task.kind == ResultKind::kError) {
    raise(PlanEngine::failure_of(task, ticket));
  }
  if (task.kind == ResultKind::kBroken) {
    const Error error = error_in(task);
    consumer_.fail();
    throw error;
  }
  static const char* const names[] = {"", "", "", "", "error", "", "", "timeout", "lost", "space"};
  const char* kind = names[static_cast<uint32_t>(task.kind)];
  uint32_t worker = task.worker;
  nb::object detail = nb::none(), index = nb::none(), last = nb::none();
  const char* call = "";
  if (task.kind == ResultKind::kError) {
    detail = values_.take(task);
  } else if (task.kind == ResultKind::kNoSpace) {
    const std::string_view text = text_in(task);
    detail = nb::str(text.data(), text.size());
  } else {
    uint32_t what = Call::of(task.in_hand.load()).what;
    if (!python_workers_ && what != kUnknownCall) what = 0;
    const uint64_t rows = std::max(ticket.end - ticket.begin, 1u);
    auto first = static_cast<uint32_t>(std::min(task.bytes, rows - 1));
    uint32_t end = first + 1;
    if (what == kAllAtOnce) {
      call = "__getitems__";
      end = first + ticket.end - ticket.begin;
    } else if (what == kUnknownCall) {
      first = 0;
      end = ticket.end - ticket.begin;
    } else if (what == kCollating) {
      call = "collate";
      first = 0;
    }
    index = index_of(ticket, first);
    if (end - first > 1) last = index_of(ticket, end - 1);
  }
  consumer_.fail();
  const nb::object make = interop("failure");
  nb::object chain = nb::none();
  if (!python_workers_) chain = nb::cast(engine_.plan().titles());
  raise_exception(make(kind, detail, ticket.epoch, ticket.step, index, worker, chain, last, call));
}

void FailureRaiser::raise(const LoaderFailure& failure) {
  consumer_.fail();
  nb::object exception = nb::steal(exception_of(failure.error));
  raise_exception(interop("failure_of_stage")(exception, failure.stage, failure.epoch,
                                              failure.index, failure.worker));
}

// The index of a row of the current entry. None: not known.
nb::object FailureRaiser::index_of(const Ticket& ticket, uint32_t row) {
  row += ticket.begin;
  if (!listed_) {
    return nb::cast(engine_.plan().index_of(ticket.epoch, ticket.base, ticket.step, row));
  }
  const uint64_t offset = engine_.scheduler().current().input_offset;
  if (offset == 0) return nb::none();
  Indices indices;
  if (read_listed(engine_.memory().at(offset), row, row + 1, indices) &&
      (!indices.objects || PyList_GET_SIZE(indices.objects.get()) == 1)) {
    Owned index = indices.at(0);
    if (!index) throw nb::python_error();
    return nb::steal(index.release());
  }
  clear_error();
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return nb::none();
}

}  // namespace penstock::python
