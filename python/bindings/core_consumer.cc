// Core as the one sees it who takes batches: next() and what moves the position.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>

#include "core.h"
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
// Who waits for the GIL asks for it once 5 ms have passed in which nobody let go of it, and only
// then is it handed over: whoever lets go more often, and takes it again, keeps it for ever.
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
      if (feed().settle(kSignalCheckNs)) return;
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
  // For elements that take no time reading the clock would be a noticeable part of it.
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
    if (plan_ != nullptr) {
      if (plan_->has_held()) {
        nb::object held = handed_out(plan_->take_held());
        if (held.is_valid()) return held;
      }
      const auto at = go_on(epoch);
      if (!at) return nb::borrow(end_marker());
      epoch = *at;
    }
    switch (feed().poll(epoch)) {
      case Feed::Poll::kEpochEnd:
        if (listed_ != nullptr) {
          if (Owned error = listed_->take_error()) raise(steal(error.release()));
        }
        if (plan_ != nullptr) {  // perhaps of one round only of the pass
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
          continue;
        }
        return nb::borrow(end_marker());
      case Feed::Poll::kFailed:
        check_open();
        raise_plan_failure(plan_->stream_failure());
      case Feed::Poll::kBatch: {
        nb::object batch = take();
        if (batch.is_valid()) return batch;
        break;
      }
      case Feed::Poll::kWait:
        if (inline_ != nullptr) {
          if (auto seq = feed().next_open()) {
            serve_post(board(), 0, *seq, *inline_, &engine_->rows());
          }
        } else {
          {
            WithoutGil unlocked;
            feed().wait(kSignalCheckNs);
            turn_.want();
          }
          turn_.have();
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
        break;
    }
    if (inline_ != nullptr && !attend()) throw nb::python_error();
  }
}

bool Core::gave_all(uint64_t epoch) const {
  return plan_ == nullptr ? engine_->feed().position().epoch != epoch : plan_->gave_all(epoch);
}

// The feed's epoch to be asked for tickets, once nothing is held; nothing: the pass is over.
std::optional<uint64_t> Core::go_on(uint64_t epoch) {
  plan_->leave_round();
  if (feed().position().epoch != epoch) {
    WithoutGil unlocked;
    for (const auto& cache : plan_->plan().caches()) cache->end_pass();
  }
  const auto round = plan_->round(epoch);
  if (round && *round != epoch) feed().begin_epoch();  // a stream's next round is not made before
  return round;
}

// A null object: there was nothing.
nb::object Core::handed_out(PlanEngine::Taken taken) {
  if (taken.failure) raise_plan_failure(std::move(*taken.failure));
  return taken.item ? objects_->object_of(*taken.item) : nb::object();
}

void Core::note_losses(PyObject* list, uint64_t epoch) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* loss = PyList_GET_ITEM(list, i);
    bool replaced = PyTuple_GET_ITEM(loss, 3) == Py_True;
    const char* reason = PyUnicode_AsUTF8(PyTuple_GET_ITEM(loss, 2));
    if (reason == nullptr) PyErr_Clear();
    engine_->add_loss({epoch, PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(loss, 1)),
                       reason == nullptr ? "" : reason},
                      replaced);
  }
}

// The batch that poll() found; a null object if it vanished (skipped), to be asked for again.
nb::object Core::take() {
  if (plan_ != nullptr && plan_->apart()) return nb::object();
  Post& post = feed().current();
  uint64_t seq = feed().current_seq();
  if (auto g = feed().failed_granule()) {
    Unit& unit = board().unit_at(seq, *g);
    raise_failure(unit, ticket_of({&post, &unit, seq, *g, 0, 0}));
  }
  if (plan_ != nullptr) return handed_out(plan_->take());
  Unit& unit = board().unit_at(seq, 0);
  uint64_t bytes = unit.bytes;
  uint64_t samples = post.rows;
  switch (unit.kind) {
    case ResultKind::kPacket: {
      nb::object batch = values_->take(unit);
      feed().deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kReplaced: {
      nb::object pair = values_->take(unit);
      note_losses(PyTuple_GET_ITEM(pair.ptr(), 1), post.epoch);
      nb::object batch = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 0));
      feed().deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kEnd: {
      nb::object lost = values_->take(unit);
      if (PyList_Check(lost.ptr())) note_losses(lost.ptr(), post.epoch);
      feed().end_stream();
      return nb::object();
    }
    case ResultKind::kSkipped: {
      nb::object lost = values_->take(unit);
      if (PyList_Check(lost.ptr())) note_losses(lost.ptr(), post.epoch);
      feed().skip();
      return nb::object();
    }
    default:
      return take_rows(post);
  }
}

nb::object Core::take_rows(Post& post) {
  uint64_t seq = feed().current_seq();
  uint64_t bytes = 0;
  uint64_t rows = 0;
  std::vector<uint32_t> lost;
  nb::object objects;
  uint32_t share = (post.rows + post.granules - 1) / post.granules;
  for (uint32_t g = 0; g < post.granules; ++g) {
    Unit& unit = board().unit_at(seq, g);
    uint32_t begin = std::min(g * share, post.rows);
    uint32_t end = std::min(begin + share, post.rows);
    bytes += unit.bytes;
    nb::object value = values_->take(unit);
    if (value.is_none()) {
      rows += end - begin;
      continue;
    }
    auto count = static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(value.ptr(), 0)));
    PyObject* list = PyTuple_GET_ITEM(value.ptr(), 1);
    PyObject* columns = PyTuple_GET_ITEM(value.ptr(), 2);
    note_losses(list, post.epoch);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      PyObject* loss = PyList_GET_ITEM(list, i);
      if (PyTuple_GET_ITEM(loss, 3) == Py_True) continue;
      uint32_t row = begin + PyLong_AsUnsignedLong(PyTuple_GET_ITEM(loss, 0));
      if (settings_.source == PlanSettings::Source::kMap) {
        lost.push_back(row);
        --count;
      }
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
    feed().skip();
    return nb::object();
  }
  std::span<const std::byte> spec(post.layout, post.layout_length);
  if (spec_rows_ != post.rows || spec_.size() != spec.size() ||
      std::memcmp(spec_.data(), spec.data(), spec.size()) != 0) {
    layout_ = layout_of(spec, post.rows);
    spec_.assign(spec.begin(), spec.end());
    spec_rows_ = post.rows;
  }
  Lease lease = feed().take_rows();
  std::byte* base = lease.data();
  layout_.compact_rows(base, lost);
  nb::object owner = steal(owner_capsule(lease.owner()));
  columns_.clear();
  for (size_t field = 0; field < layout_.fields().size(); ++field) {
    columns_.push_back(layout_.column(base, field));
  }
  nb::object batch = steal(
      batch_of(spec_, columns_, rows, owner.ptr(), objects.is_valid() ? objects.ptr() : nullptr));
  feed().deliver(bytes, rows);
  return batch;
}

// What a row of the post in hand was asked for by. None: nobody can say.
nb::object Core::index_of(const Ticket& ticket, uint32_t row) {
  row += ticket.begin;
  uint64_t index = 0;
  if (listed_ != nullptr) {
    const uint64_t offset = feed().current().indices_offset;
    if (offset == 0) return nb::none();
    PythonWorker::Indices indices;
    const std::byte* listed = engine_->rows().at(offset);
    if (PythonWorker::load_listed(listed, row, row + 1, indices)) {
      if (!indices.objects) return steal(indices.at(0));
      if (PyList_GET_SIZE(indices.objects.get()) == 1) return steal(indices.at(0));
    }
    clear_trouble();
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return nb::none();
  } else if (plan_ != nullptr) {
    plan_->plan().locate(ticket.epoch, ticket.base, ticket.step, row, {&index, 1});
  } else if (indexed_ != nullptr) {
    order_.indices(ticket.epoch, ticket.base, ticket.step, row, {&index, 1});
  } else {
    index = (ticket.base + ticket.step) * order_.options().batch_size + row;
  }
  return nb::cast(index);
}

void Core::raise_failure(Unit& unit, const Ticket& ticket) {
  const bool processes = engine_->settings().processes;
  if (plan_ != nullptr && !processes && unit.kind == ResultKind::kError) {
    raise_plan_failure(PlanEngine::failure_of(unit, ticket));
  }
  if (unit.kind == ResultKind::kBroken) {
    const Error error = error_in(unit);
    feed().fail();
    failed_ = true;
    throw error;
  }
  static const char* const names[] = {"", "", "", "", "error", "", "", "timeout", "lost", "room"};
  const char* kind = names[static_cast<uint32_t>(unit.kind)];
  uint32_t worker = unit.worker;
  nb::object detail = nb::none(), index = nb::none(), last = nb::none();
  const char* call = "";
  if (unit.kind == ResultKind::kError) {
    detail = values_->take(unit);
  } else if (unit.kind == ResultKind::kNoRoom) {
    detail = nb::str(reinterpret_cast<const char*>(unit.packet), unit.length);
  } else {
    const uint32_t what = plan_ == nullptr ? Call::of(unit.in_hand.load()).what : 0;
    uint32_t first = static_cast<uint32_t>(unit.bytes), end = first + 1;
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
  feed().fail();
  failed_ = true;
  PyObject* make = helper("penstock.base.interop", "failure");
  if (make == nullptr) throw nb::python_error();
  nb::object chain = nb::none();
  if (plan_ != nullptr) chain = nb::cast(plan_->plan().titles());
  nb::object exception =
      nb::borrow(make)(kind, detail, ticket.epoch, ticket.step, index, worker, chain, last, call);
  raise(exception);
}

void Core::raise_plan_failure(LoaderFailure failure) {
  feed().fail();
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
  feed().begin_epoch();
}

void Core::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock = consume();
  check_open();
  feed().seek({epoch, base, step}, {ahead.begin(), ahead.end()});
  failed_ = false;
}

nb::tuple Core::position() {
  const Position at = plan_ == nullptr ? feed().position() : plan_->position();
  return nb::make_tuple(at.epoch, at.base, at.step);
}

std::vector<uint64_t> Core::ahead() { return {feed().ahead().begin(), feed().ahead().end()}; }

uint64_t Core::steps(uint64_t base) {
  if (plan_ == nullptr) return order_.steps(base);
  return plan_->plan().known_length().value_or(kEndless);
}

void Core::set_length(uint64_t length, uint64_t version) {
  ConsumerLock lock = consume();
  Order::Options options = order_.options();
  options.length = length;
  order_ = Order(options);
  settings_.order = options;
  if (indexed_ != nullptr) indexed_->set_order(order_);
  feed().set_version(version);
}

bool Core::holds() {
  ConsumerLock lock = consume();
  return plan_ != nullptr && plan_->holds();
}

uint64_t Core::begin_pass(bool resumed) {
  ConsumerLock lock = consume();
  check_open();
  return plan_->begin_pass(resumed, failed_ || plan_->amid());
}

LoaderState Core::plan_place() const { return plan_->state(); }

std::string Core::plan_state() { return plan_place().to_json(); }

uint64_t Core::rounds() const { return plan_->plan().rounds(); }

void Core::check_plan_state(const std::string& state) {
  plan_->check(LoaderState::from_json(state));
}

void Core::restore_plan(const std::string& state) {
  ConsumerLock lock = consume();
  check_open();
  plan_->restore(LoaderState::from_json(state));
  failed_ = false;
}

}  // namespace penstock::python
