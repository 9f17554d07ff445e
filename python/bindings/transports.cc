#include "transports.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "failures.h"
#include "gil.h"
#include "penstock/base/error.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

std::exception_ptr lost(const std::string& text) {
  return std::make_exception_ptr(Error(Code::kInternal, "Loader", text));
}

Failure failure_from(nb::handle packed) {
  Failure failure{nb::cast<std::string>(packed[1]), nb::cast<uint64_t>(packed[2]), nullptr};
  failure.decision = static_cast<Decision>(nb::cast<uint32_t>(packed[4]));
  failure.provisional = nb::cast<bool>(packed[5]);
  auto text = nb::cast<std::string>(packed[3]);
  nb::object exception = nb::none();
  if (!nb::object(packed[0]).is_none()) {
    PyObject* unpack = helper("penstock.errors", "unpack_exception");
    if (unpack == nullptr) throw nb::python_error();
    exception = nb::borrow(unpack)(nb::object(packed[0]));
  }
  const bool is_error = failure.decision != Decision::kRaise;
  failure.error = std::make_exception_ptr(Raised::from(exception.ptr(), std::move(text), is_error));
  return failure;
}

}  // namespace

ParallelMapResult ProcessResults::take(Task& task) {
  const bool row = task.kind == ResultKind::kRows;
  if (task.length == 0) {
    task.kind = ResultKind::kNone;
    if (row) return {};
    return {Failure{"stream", 0, lost("an exception that was lost")}, {}};
  }
  WithGil locked;
  try {
    nb::object value = values_.take(task);
    ParallelMapResult result;
    if (!row) result.failure = failure_from(nb::object(value[0]));
    for (nb::handle note : nb::object(value[1])) result.notes.push_back(failure_from(note));
    return result;
  } catch (nb::python_error& error) {
    error.restore();
    return {Failure{"stream", 0, std::make_exception_ptr(Raised::take())}, {}};
  } catch (const Error&) {  // closed
    return {Failure{"stream", 0, std::current_exception()}, {}};
  }
}

std::vector<Loss> ValueTransport::losses_in(Task& task) {
  return python::losses_in(values_.take(task).ptr());
}

std::unique_ptr<ChainWorker::Outlet> ValueTransport::outlet() {
  throw Error(Code::kInternal, "Loader", "workers of this Loader are no threads of its plan");
}

}  // namespace penstock::python
