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

bool Core::attend() {
  if (unlooked_ > 0) {
    --unlooked_;
    return true;
  }
  const uint64_t before = std::exchange(looked_ns_, now_ns());
  // For very fast elements, reading the clock would be a noticeable part of the time.
  if (looked_ns_ - before < kQuickNs) unlooked_ = 15;
  if (looked_ns_ - attended_ns_ < kAttendNs) return true;
  {
    StayWhenEnded stay;
    { WithoutGil unlocked; }
    stay.returned();
  }
  attended_ns_ = now_ns();
  return PyErr_CheckSignals() == 0;
}

nb::object Core::next(uint64_t epoch, uint64_t serial) {
  ConsumerLock lock = consume();
  for (;;) {
    check_open();
    if (serial < latest_) {
      throw Error(
          Code::kInvalidArgument, "Loader",
          "this iteration was overtaken: a later one was begun before its end. A Loader has "
          "one place, so the batches that are missing here are the later one's, or were left "
          "out; zip and nested loops need a Loader for each iteration");
    }
    if (serial != serial_) return nb::borrow(end_marker());
    if (engine_->has_held()) {
      nb::object held = handed_out(engine_->take_held());
      if (held.is_valid()) return held;
    }
    const auto at = go_on(epoch);
    if (!at) return nb::borrow(end_marker());
    epoch = *at;
    switch (scheduler().poll(epoch)) {
      case Scheduler::Poll::kEpochEnd:
        if (listed_ != nullptr) {
          if (Owned error = listed_->take_error()) raise(steal(error.release()));
        }
        // Possibly the end of one round only, not of the pass.
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        continue;
      case Scheduler::Poll::kFailed:
        check_open();
        raise_failure_of_stage(engine_->stream_failure());
      case Scheduler::Poll::kBatch: {
        nb::object batch = take();
        if (batch.is_valid()) return batch;
        break;
      }
      case Scheduler::Poll::kWait:
        if (inline_ != nullptr) {
          if (auto seq = scheduler().next_open()) {
            serve_entry(ring(), 0, *seq, *inline_, &engine_->memory());
          }
        } else {
          {
            WithoutGil unlocked;
            scheduler().wait(kSignalCheckNs);
            handover_.want();
          }
          handover_.have();
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
        break;
    }
    if (inline_ != nullptr && !attend()) throw nb::python_error();
  }
}

// The scheduler's epoch to poll when no element is held; nothing: the pass has ended.
std::optional<uint64_t> Core::go_on(uint64_t epoch) {
  engine_->leave_round();
  if (scheduler().position().epoch != epoch) {
    WithoutGil unlocked;
    for (const auto& cache : plan().caches()) cache->end_pass();
  }
  const auto round = engine_->round(epoch);
  if (round && *round != epoch)
    scheduler().begin_epoch();  // a stream's next round must not start before
  return round;
}

// A null object: there was no item.
nb::object Core::handed_out(PlanEngine::Taken taken) {
  if (taken.failure) raise_failure_of_stage(std::move(*taken.failure));
  return taken.item ? objects_->object_of(*taken.item) : nb::object();
}

// The scheduler's current batch. A null object: all of it was skipped; ask again.
nb::object Core::take() {
  if (engine_->remake_if_mismatched()) return nb::object();
  BatchEntry& entry = scheduler().current();
  uint64_t seq = scheduler().current_seq();
  if (auto g = scheduler().failed_granule()) {
    Task& task = ring().task_at(seq, *g);
    raise_failure(task, ticket_of({&entry, &task, seq, *g, 0, 0}));
  }
  if (objects_ != nullptr) return handed_out(engine_->take());
  Task& task = ring().task_at(seq, 0);
  uint64_t bytes = task.bytes;
  uint64_t samples = entry.rows;
  switch (task.kind) {
    case ResultKind::kPacket: {
      nb::object batch = values_->take(task);
      scheduler().deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kReplaced: {
      nb::object pair = values_->take(task);
      engine_->add_losses(losses_in(PyTuple_GET_ITEM(pair.ptr(), 1)), entry.epoch);
      nb::object batch = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 0));
      scheduler().deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kEnd: {
      nb::object lost = values_->take(task);
      engine_->add_losses(losses_in(lost.ptr()), entry.epoch);
      scheduler().end_stream();
      return nb::object();
    }
    case ResultKind::kSkipped: {
      nb::object lost = values_->take(task);
      engine_->add_losses(losses_in(lost.ptr()), entry.epoch);
      scheduler().skip();
      return nb::object();
    }
    default:
      return take_rows(entry);
  }
}

nb::object Core::take_rows(BatchEntry& entry) {
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
    return nb::object();
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
  nb::object batch = steal(
      batch_of(spec_, columns_, rows, owner.ptr(), objects.is_valid() ? objects.ptr() : nullptr));
  scheduler().deliver(bytes, rows);
  return batch;
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

void Core::raise_failure(Task& task, const Ticket& ticket) {
  const bool processes = engine_->settings().processes;
  if (objects_ != nullptr && !processes && task.kind == ResultKind::kError) {
    raise_failure_of_stage(PlanEngine::failure_of(task, ticket));
  }
  if (task.kind == ResultKind::kBroken) {
    const Error error = error_in(task);
    scheduler().fail();
    failed_ = true;
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
  scheduler().fail();
  failed_ = true;
  PyObject* make = helper("penstock.base.interop", "failure");
  if (make == nullptr) throw nb::python_error();
  nb::object chain = nb::none();
  if (objects_ != nullptr) chain = nb::cast(plan().titles());
  nb::object exception =
      nb::borrow(make)(kind, detail, ticket.epoch, ticket.step, index, worker, chain, last, call);
  raise(exception);
}

void Core::raise_failure_of_stage(LoaderFailure failure) {
  scheduler().fail();
  failed_ = true;
  nb::object exception = nb::steal(exception_of(failure.error));
  PyObject* make = helper("penstock.base.interop", "failure_of_stage");
  if (make == nullptr) throw nb::python_error();
  raise(nb::borrow(make)(exception, failure.stage, failure.epoch, failure.index, failure.worker));
}

// ---- place

void Core::begin_epoch() {
  ConsumerLock lock = consume();
  check_open();
  scheduler().begin_epoch();
}

void Core::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock = consume();
  check_open();
  scheduler().seek({epoch, base, step}, {ahead.begin(), ahead.end()});
  failed_ = false;
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
  return engine_->begin_pass(resumed, failed_ || engine_->amid());
}

void Core::restore(const std::string& state) {
  ConsumerLock lock = consume();
  check_open();
  engine_->restore(LoaderState::from_json(state));
  failed_ = false;
}

}  // namespace penstock::python
