#include "packet_outlet.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "failures.h"
#include "gil.h"
#include "penstock/pipeline/stages/losses.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {

void PacketOutlet::rows(Slot& slot, uint64_t bytes, std::vector<Loss> losses) {
  if (losses.empty()) {
    slot.finish_inline(ResultKind::kRows, bytes, {});
    return;
  }
  // A ticket of single elements that have Python in their chain is one element.
  for (Loss& loss : losses) {
    if (loss.error == nullptr) continue;
    return fail(slot, slot.ticket(), {loss.stage, loss.index, loss.error});
  }
  WithGil locked;
  Owned list = list_of(losses);
  if (!list || !packets_.encode(list.get())) throw nb::python_error();
  packets_.send(slot, ResultKind::kRows, bytes);
}

void PacketOutlet::item(Slot&, const Ticket&, void*, std::vector<Loss>) {
  throw Error(Code::kInternal, "worker", "a C++ object cannot leave its process");
}

namespace {

FailurePlace place_of(Slot& slot, const Failure& failure) {
  return {slot.claim().worker, 0, failure.position, -1, failure.stage};
}

nb::object text_object(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

}  // namespace

void PacketOutlet::element(Slot& slot, const Ticket& ticket, uint64_t bytes,
                           ParallelMapResult result) {
  const ResultKind kind = result.failure ? ResultKind::kError : ResultKind::kRows;
  if (!result.failure && result.notes.empty()) {
    slot.finish_inline(kind, bytes, {});
    return;
  }
  WithGil locked;
  auto packed = [&](const Failure& failure) {
    Owned exception(exception_of(failure.error));
    Owned bytes = packed_exception(exception.get(), ticket, place_of(slot, failure));
    if (!bytes) throw nb::python_error();
    return nb::steal(bytes.release());
  };
  auto entry = [&](const Failure& failure, bool whole) {
    return nb::make_tuple(whole ? packed(failure) : nb::none(), text_object(failure.stage),
                          failure.position, text_object(text_of(failure.error)),
                          static_cast<uint32_t>(failure.decision), failure.provisional);
  };
  nb::list notes;
  for (const Failure& lost : result.notes) notes.append(entry(lost, false));
  nb::object failed = nb::none();
  if (result.failure) failed = entry(*result.failure, !result.failure->settled());
  if (!packets_.encode(nb::make_tuple(failed, notes).ptr())) throw nb::python_error();
  packets_.send(slot, kind, bytes);
}

void PacketOutlet::fail(Slot& slot, const Ticket& ticket, Failure failure) {
  WithGil locked;
  Owned exception(exception_of(failure.error));
  Owned value = packed_failed_result(exception.get(), ticket, place_of(slot, failure));
  if (!value || !packets_.encode(value.get())) {
    PyErr_Clear();
    slot.finish_inline(ResultKind::kError, 0, {});
    return;
  }
  packets_.send(slot, ResultKind::kError, 0);
}

}  // namespace penstock::python
