#pragma once

#include <cstdint>

#include "gil.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/workers/slot.h"
#include "python_op.h"
#include "random.h"
#include "sample_settings.h"
#include "worker_times.h"

namespace penstock::python {

inline constexpr uint32_t kAllAtOnce = UINT32_MAX;  // Call::what of __getitems__

// Calls user code for a PythonWorker's ticket: with keyed random numbers, repeated after
// exceptions, and timed. One thread, with the GIL. A null Owned: a Python exception is set.
class SampleCalls {
 public:
  // All arguments outlive this.
  SampleCalls(const SampleSettings& settings, TicketRing& ring, WorkerTimes& times)
      : settings_(settings), ring_(ring), times_(times) {}

  // Records which call begins. Error kClosed: the ticket was taken away.
  static void progress(Slot& slot, const Call& call) {
    if (!slot.progress(call)) throw Error(Code::kClosed, "worker", "the ticket was taken away");
  }
  // Whether this call must not be tried again (RingSupervisor::poison).
  static bool is_poisoned(Slot& slot, const Call& call) { return slot.ending(call).has_value(); }
  // Sets the exception of such a call.
  static void set_poisoned() {
    PyErr_SetString(PyExc_RuntimeError, "timed out, or its worker died, as often as is allowed");
  }

  // Sets the generators of random numbers to the key of a sample of the slot's ticket.
  void set_key(Slot& slot, uint64_t key) const {
    const uint64_t epoch = slot.ticket().epoch;
    set_ticket_key(settings_.order.seed, epoch, key);
    if (settings_.rekey_globals) rekey_globals(settings_.order.seed, epoch, key);
  }

  // One call of user code, for so many rows.
  template <class Function>
  Owned once(WorkerTimes::Stage stage, uint64_t rows, const Function& function) {
    const WorkerTimes::Piece piece = times_.begin(stage, rows);
    StayWhenEnded stay;
    Owned value(function());
    stay.returned();
    return value;
  }
  // Repeats `call` after an exception, up to `retries` times.
  template <class Function>
  Owned tried(Slot& slot, const Function& call) {
    for (uint32_t left = settings_.retries;; --left) {
      Owned value = call();
      if (value) return value;
      slot.counters().errors.add_single_writer();
      if (left == 0 || !raised_error()) return value;
      PyErr_Clear();
      ring_.consumer().retried.add();
    }
  }
  // Counts an exception after which the work was done in another way.
  void count_error() { ring_.consumer().errors.add(); }

 private:
  const SampleSettings& settings_;
  TicketRing& ring_;
  WorkerTimes& times_;
};

}  // namespace penstock::python
