// Core for the consumer: next() and the calls that move the position.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>

#include "core.h"
#include "failures.h"
#include "gil.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {

PyObject* end_marker() {
  static PyObject* marker = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return marker;
}

namespace {

constexpr int64_t kSignalCheckNs = 100'000'000;
constexpr uint64_t kQuickNs = 100'000;
// A thread that waits for the GIL requests it after 5 ms without a release, and only then gets it.
// So a thread that releases and acquires the GIL more often can keep it for ever.
constexpr uint64_t kAttendNs = 20'000'000;

nb::object steal(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

}  // namespace

void Core::settle() {
  ConsumerLock lock = consume();
  for (;;) {
    check_open();
    {
      WithoutGil unlocked;
      if (scheduler().settle(kSignalCheckNs)) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void Core::attend() {
  if (unlooked_ > 0) {
    --unlooked_;
    return;
  }
  const uint64_t before = std::exchange(looked_ns_, now_ns());
  // For very fast elements, reading the clock would be a noticeable part of the time.
  if (looked_ns_ - before < kQuickNs) unlooked_ = 15;
  if (looked_ns_ - attended_ns_ < kAttendNs) return;
  {
    StayWhenEnded stay;
    { WithoutGil unlocked; }
    stay.returned();
  }
  attended_ns_ = now_ns();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

nb::object Core::next(uint64_t serial) {
  ConsumerLock lock = consume();
  check_open();
  if (consumer_->check_iteration(serial) && consumer_->next()) return std::move(batch_);
  return nb::borrow(end_marker());
}

void Core::leave_round() {
  if (listed_ != nullptr) {
    if (Owned error = listed_->take_error()) raise(steal(error.release()));
  }
  {
    WithoutGil unlocked;
    engine_->leave_round();
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void Core::wait() {
  {
    WithoutGil unlocked;
    scheduler().wait(kSignalCheckNs);
    handover_.want();
  }
  handover_.have();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void Core::hand_out(const PlanOutput::Item& item) { batch_ = objects_->object_of(item); }

bool Core::take() {
  if (objects_ != nullptr) return consumer_->hand_out(engine_->take());
  BatchEntry& entry = scheduler().current();
  const uint64_t seq = scheduler().current_seq();
  Task& task = ring().task_at(seq, 0);
  uint64_t bytes = task.bytes;
  uint64_t samples = entry.rows;
  switch (task.kind) {
    case ResultKind::kPacket: {
      batch_ = values_->take(task);
      scheduler().deliver(bytes, samples);
      return true;
    }
    case ResultKind::kReplaced: {
      nb::object pair = values_->take(task);
      engine_->add_losses(losses_in(PyTuple_GET_ITEM(pair.ptr(), 1)), entry.epoch);
      batch_ = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 0));
      scheduler().deliver(bytes, samples);
      return true;
    }
    case ResultKind::kEnd: {
      nb::object lost = values_->take(task);
      engine_->add_losses(losses_in(lost.ptr()), entry.epoch);
      scheduler().end_stream();
      return false;
    }
    case ResultKind::kSkipped: {
      nb::object lost = values_->take(task);
      engine_->add_losses(losses_in(lost.ptr()), entry.epoch);
      scheduler().skip();
      return false;
    }
    default:
      return take_rows(entry);
  }
}

bool Core::take_rows(BatchEntry& entry) {
  uint64_t seq = scheduler().current_seq();
  uint64_t bytes = 0;
  uint64_t rows = 0;
  std::vector<uint32_t> lost;
  nb::object objects;
  uint32_t share = (entry.rows + entry.granules - 1) / entry.granules;
  for (uint32_t g = 0; g < entry.granules; ++g) {
    Task& task = ring().task_at(seq, g);
    uint32_t begin = std::min(g * share, entry.rows);
    uint32_t end = std::min(begin + share, entry.rows);
    bytes += task.bytes;
    nb::object value = values_->take(task);
    if (value.is_none()) {
      rows += end - begin;
      continue;
    }
    auto count = static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(value.ptr(), 0)));
    const std::vector<Loss> losses = losses_in(PyTuple_GET_ITEM(value.ptr(), 1));
    PyObject* columns = PyTuple_GET_ITEM(value.ptr(), 2);
    engine_->add_losses(losses, entry.epoch);
    for (const Loss& loss : losses) {
      if (!loss.gap) continue;
      lost.push_back(begin + loss.row);
      --count;
    }
    rows += count;
    if (columns == Py_None) continue;
    if (!objects.is_valid()) {
      objects = nb::borrow(columns);
    } else {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(columns); ++i) {
        PyObject* to = PyList_GET_ITEM(objects.ptr(), i);
        Py_ssize_t at = PyList_GET_SIZE(to);
        if (PyList_SetSlice(to, at, at, PyList_GET_ITEM(columns, i)) != 0) throw nb::python_error();
      }
    }
  }
  if (rows == 0) {
    scheduler().skip();
    return false;
  }
  std::span<const std::byte> spec(entry.layout, entry.layout_length);
  if (spec_rows_ != entry.rows || spec_.size() != spec.size() ||
      std::memcmp(spec_.data(), spec.data(), spec.size()) != 0) {
    layout_ = layout_of(spec, entry.rows);
    spec_.assign(spec.begin(), spec.end());
    spec_rows_ = entry.rows;
  }
  Lease lease = scheduler().take_rows();
  std::byte* base = lease.data();
  layout_.compact_rows(base, lost);
  nb::object owner = steal(owner_capsule(lease.owner()));
  columns_.clear();
  for (size_t field = 0; field < layout_.fields().size(); ++field) {
    columns_.push_back(layout_.column(base, field));
  }
  batch_ = steal(
      batch_of(spec_, columns_, rows, owner.ptr(), objects.is_valid() ? objects.ptr() : nullptr));
  scheduler().deliver(bytes, rows);
  return true;
}

// The index of a row of the current entry. None: not known.
nb::object Core::index_of(const Ticket& ticket, uint32_t row) {
  row += ticket.begin;
  if (listed_ != nullptr) {
    const uint64_t offset = scheduler().current().input_offset;
    if (offset == 0) return nb::none();
    PythonWorker::Indices indices;
    const std::byte* listed = engine_->memory().at(offset);
    if (PythonWorker::load_listed(listed, row, row + 1, indices)) {
      if (!indices.objects) return steal(indices.at(0));
      if (PyList_GET_SIZE(indices.objects.get()) == 1) return steal(indices.at(0));
    }
    clear_error();
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return nb::none();
  }
  return nb::cast(plan().index_of(ticket.epoch, ticket.base, ticket.step, row));
}

void Core::raise(Task& task, const Ticket& ticket) {
  const bool processes = engine_->settings().processes;
  if (objects_ != nullptr && !processes && task.kind == ResultKind::kError) {
    raise(PlanEngine::failure_of(task, ticket));
  }
  if (task.kind == ResultKind::kBroken) {
    const Error error = error_in(task);
    consumer_->fail();
    throw error;
  }
  static const char* const names[] = {"", "", "", "", "error", "", "", "timeout", "lost", "space"};
  const char* kind = names[static_cast<uint32_t>(task.kind)];
  uint32_t worker = task.worker;
  nb::object detail = nb::none(), index = nb::none(), last = nb::none();
  const char* call = "";
  if (task.kind == ResultKind::kError) {
    detail = values_->take(task);
  } else if (task.kind == ResultKind::kNoSpace) {
    detail = nb::str(reinterpret_cast<const char*>(task.packet), task.length);
  } else {
    const uint32_t what = objects_ == nullptr ? Call::of(task.in_hand.load()).what : 0;
    uint32_t first = static_cast<uint32_t>(task.bytes), end = first + 1;
    if (what == kAllAtOnce) {
      call = "__getitems__";
      end = first + ticket.end - ticket.begin;
    } else if (what == kCollating) {
      call = "collate";
      first = 0;
    }
    index = index_of(ticket, first);
    if (end - first > 1) last = index_of(ticket, end - 1);
  }
  consumer_->fail();
  PyObject* make = helper("penstock.base.interop", "failure");
  if (make == nullptr) throw nb::python_error();
  nb::object chain = nb::none();
  if (objects_ != nullptr) chain = nb::cast(plan().titles());
  nb::object exception =
      nb::borrow(make)(kind, detail, ticket.epoch, ticket.step, index, worker, chain, last, call);
  raise(exception);
}

void Core::raise(LoaderFailure failure) {
  consumer_->fail();
  nb::object exception = nb::steal(exception_of(failure.error));
  PyObject* make = helper("penstock.base.interop", "failure_of_stage");
  if (make == nullptr) throw nb::python_error();
  raise(nb::borrow(make)(exception, failure.stage, failure.epoch, failure.index, failure.worker));
}

// ---- place

void Core::begin_epoch(uint64_t epoch) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->enter_round(epoch);
}

void Core::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->seek({epoch, base, step}, {ahead.begin(), ahead.end()});
}

nb::tuple Core::position() {
  const Position at = engine_->position();
  return nb::make_tuple(at.epoch, at.base, at.step);
}

std::vector<uint64_t> Core::ahead() {
  return {scheduler().ahead().begin(), scheduler().ahead().end()};
}

void Core::set_length(uint64_t length, uint64_t version) {
  ConsumerLock lock = consume();
  settings_.order.length = length;
  count_->store(length, std::memory_order_release);
  engine_->length_changed(version);
}

bool Core::holds() {
  ConsumerLock lock = consume();
  return engine_->holds();
}

uint64_t Core::begin_pass(bool resumed) {
  ConsumerLock lock = consume();
  check_open();
  return consumer_->begin_pass(resumed);
}

void Core::restore(const std::string& state) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->restore(LoaderState::from_json(state));
}

}  // namespace penstock::python
