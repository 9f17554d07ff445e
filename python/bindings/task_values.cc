#include "task_values.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "gil.h"
#include "penstock/base/error.h"
#include "penstock/workers/ticket_runner.h"

namespace nb = nanobind;

namespace penstock::python {

TaskValues::TaskValues(bool processes, TicketRing& ring, Supervisor& supervisor,
                       std::function<void()> check_open)
    : processes_(processes), ring_(ring), check_open_(std::move(check_open)) {
  arena_of_ = [&supervisor](uint32_t number) {
    if (supervisor.arenas().knows(number)) return supervisor.arenas().region(number);
    // The thread that receives the arena may be waiting for the GIL.
    WithoutGil unlocked;
    return supervisor.arenas().region(number);
  };
}

// A packet's arena may no longer exist, because the loader was closed meanwhile.
nb::object TaskValues::decoded(PyObject* made) {
  if (made == nullptr && ring_.closed()) {
    PyErr_Clear();
    check_open_();
  }
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object TaskValues::take(Task& task) {
  ResultKind kind = task.kind;
  task.kind = ResultKind::kNone;
  if (!processes_) {
    if (task.object == 0) return nb::none();
    return nb::steal(reinterpret_cast<PyObject*>(std::exchange(task.object, 0)));
  }
  if (kind == ResultKind::kNone || task.length == 0) return nb::none();
  if (task.length <= Slot::kInline) {
    return decoded(decode({task.packet, task.length}, {}, nullptr, arena_of_));
  }
  if (task.block.arena == kSpilled) {
    std::shared_ptr<Spill> spill = take_spill(task);
    if (spill == nullptr) throw Error(Code::kDataLoss, "Loader", "a result without its packet");
    uint32_t tree = 0;
    if (spill->size < sizeof(tree)) throw Error(Code::kInternal, "Loader", "an empty packet");
    std::memcpy(&tree, spill->bytes.get(), sizeof(tree));
    if (tree > spill->size) throw Error(Code::kInternal, "Loader", "a packet longer than itself");
    uint64_t tail = std::min(Encoder::tail_offset(tree), spill->size);
    std::byte* bytes = spill->bytes.get();
    return decoded(decode({bytes, tree}, {bytes + tail, spill->size - tail}, spill, arena_of_));
  }
  auto region = arena_of_(task.block.arena);
  if (region == nullptr) check_open_();
  if (region == nullptr) throw Error(Code::kInternal, "Loader", "a result without its arena");
  if (task.length > task.block.bytes) {
    throw Error(Code::kDataLoss, "Loader", "a packet that is longer than its block");
  }
  Lease lease(region, {task.block.offset, task.block.bytes, task.block.generation, 0});
  return decoded(decode({lease.data(), task.length}, {}, nullptr, arena_of_));
}

void TaskValues::discard(Task& task) {
  WithGil locked;
  try {
    (void)take(task);
  } catch (...) {
    PyErr_Clear();  // the value is dropped anyway
  }
}

}  // namespace penstock::python
