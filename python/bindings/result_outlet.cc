#include "result_outlet.h"

#include <utility>

namespace penstock::python {

bool ResultOutlet::hand_over(Slot& slot, ResultKind kind, Owned value, uint64_t more_bytes) {
  if (!value) return false;
  if (target_.packed()) return pack(slot, kind, std::move(value), more_bytes);
  Owned own(detach(value.release(), slot.counters(), more_bytes));
  if (!own) return false;
  give(slot, kind, std::move(own), more_bytes);
  return true;
}

void ResultOutlet::fail(Slot& slot, FailurePlace place) {
  Owned exception = exception_in_flight();
  place.worker = slot.claim().worker;
  const bool packed = target_.packed();
  Owned value = packed ? packed_failed_result(exception.get(), slot.ticket(), place)
                       : failed_result(exception.get(), place);
  exception = Owned();
  if (!value) {
    PyErr_Clear();
    value = Owned(Py_NewRef(Py_None));
  }
  if (!packed) return give(slot, ResultKind::kError, std::move(value), 0);
  if (pack(slot, ResultKind::kError, std::move(value), 0)) return;
  PyErr_Clear();
  slot.finish_inline(ResultKind::kError, 0, {});
}

void ResultOutlet::give(Slot& slot, ResultKind kind, Owned object, uint64_t bytes) {
  slot.counters().bytes.add_single_writer(bytes);
  if (slot.finish_object(kind, bytes, object.get())) (void)object.release();
}

bool ResultOutlet::pack(Slot& slot, ResultKind kind, Owned value, uint64_t more_bytes) {
  if (packets_ == nullptr && target_.remote) {
    packets_ = std::make_unique<Packets>(ring_, slot.counters());
  } else if (packets_ == nullptr) {
    packets_ = std::make_unique<Packets>(*target_.arena, target_.number, target_.link, ring_,
                                         slot.counters());
  }
  const WorkerTimes::Piece piece = times_.begin(WorkerTimes::kHandOver, 1);
  if (!packets_->encode(value.get())) return false;
  value = Owned();  // from now on only the leases own the blocks
  packets_->send(slot, kind, more_bytes);
  return true;
}

}  // namespace penstock::python
