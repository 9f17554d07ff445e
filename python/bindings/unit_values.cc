#include "unit_values.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "gil.h"
#include "penstock/base/error.h"
#include "penstock/workers/worker.h"

namespace nb = nanobind;

namespace penstock::python {

UnitValues::UnitValues(bool processes, Board& board, Supervisor& supervisor,
                       std::function<void()> check_open)
    : processes_(processes), board_(board), check_open_(std::move(check_open)) {
  arena_of_ = [&supervisor](uint32_t number) {
    if (supervisor.knows(number)) return supervisor.region(number);
    // The thread that hears of it may be waiting for the GIL.
    WithoutGil unlocked;
    return supervisor.region(number);
  };
}

// The arena that a packet speaks of may be gone because the loader was closed meanwhile.
nb::object UnitValues::decoded(PyObject* made) {
  if (made == nullptr && board_.closed()) {
    PyErr_Clear();
    check_open_();
  }
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object UnitValues::take(Unit& unit) {
  ResultKind kind = unit.kind;
  unit.kind = ResultKind::kNone;
  if (!processes_) {
    if (unit.object == 0) return nb::none();
    return nb::steal(reinterpret_cast<PyObject*>(std::exchange(unit.object, 0)));
  }
  if (kind == ResultKind::kNone || unit.length == 0) return nb::none();
  if (unit.length <= Slot::kInline) {
    return decoded(decode({unit.packet, unit.length}, {}, nullptr, arena_of_));
  }
  if (unit.block.arena == kSpilled) {
    std::shared_ptr<Spill> spill(reinterpret_cast<Spill*>(std::exchange(unit.object, 0)));
    uint32_t tree = 0;
    if (spill->size < sizeof(tree)) throw Error(Code::kInternal, "Loader", "an empty packet");
    std::memcpy(&tree, spill->bytes.get(), sizeof(tree));
    if (tree > spill->size) throw Error(Code::kInternal, "Loader", "a packet longer than itself");
    uint64_t tail = std::min(Encoder::tail_offset(tree), spill->size);
    std::byte* bytes = spill->bytes.get();
    return decoded(decode({bytes, tree}, {bytes + tail, spill->size - tail}, spill, arena_of_));
  }
  auto region = arena_of_(unit.block.arena);
  if (region == nullptr) check_open_();
  if (region == nullptr) throw Error(Code::kInternal, "Loader", "a result without its arena");
  Lease lease(region, {unit.block.offset, unit.block.bytes, unit.block.generation, 0});
  return decoded(decode({lease.data(), unit.length}, {}, nullptr, arena_of_));
}

void UnitValues::discard(Unit& unit) {
  WithGil locked;
  try {
    (void)take(unit);
  } catch (...) {
    PyErr_Clear();  // nobody wanted it
  }
}

}  // namespace penstock::python
