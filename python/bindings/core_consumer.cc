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
      if (feed_->settle(kSignalCheckNs)) return;
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
    if (pipeline_ != nullptr) {
      nb::object held = take_held();
      if (held.is_valid()) return held;
      // A pass of the user's may be several epochs of the feed.
      const uint64_t at = feed_->position().epoch;
      note_leftover();
      if (at != epoch) {
        WithoutGil unlocked;
        for (const auto& cache : pipeline_->caches()) cache->end_pass();
      }
      if (pass_of(at) != pass_of(epoch) || pipeline_->known_length() == uint64_t{0}) {
        return nb::borrow(end_marker());
      }
      if (at != epoch && at > delivered_epoch_ + 1 && pipeline_->rounds() == kEndless) {
        return nb::borrow(end_marker());  // a whole round gave nothing: the next ones will not
      }
      if (at != epoch) feed_->begin_epoch();  // a stream's next round is not made before
      epoch = at;
    }
    switch (feed_->poll(epoch)) {
      case Feed::Poll::kEpochEnd:
        if (listed_ != nullptr) {
          if (Owned error = listed_->take_error()) raise(steal(error.release()));
        }
        if (pipeline_ != nullptr) {  // perhaps of one round only of the pass
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
          continue;
        }
        return nb::borrow(end_marker());
      case Feed::Poll::kFailed:
        check_open();
        raise_stream_failure();
      case Feed::Poll::kBatch: {
        nb::object batch = take();
        if (batch.is_valid()) return batch;
        break;
      }
      case Feed::Poll::kWait:
        if (inline_ != nullptr) {
          if (auto seq = feed_->next_open()) {
            serve_post(*board_, 0, *seq, *inline_, rows_.get());
          }
        } else {
          {
            WithoutGil unlocked;
            feed_->wait(kSignalCheckNs);
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
  const uint64_t at = feed_->position().epoch;
  if (pipeline_ == nullptr) return at != epoch;
  return pass_of(at) != pass_of(epoch) && !output_->anything_held();
}

// The arena that a packet speaks of may be gone because the loader was closed meanwhile.
nb::object Core::decoded(PyObject* made) {
  if (made == nullptr && board_->closed()) {
    PyErr_Clear();
    check_open();
  }
  return steal(made);
}

// What a unit carries, as a Python object; it is the unit's no longer.
nb::object Core::unit_value(Unit& unit) {
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
    uint64_t tail = (uint64_t{tree} + 63) / 64 * 64;
    if (tree > spill->size) throw Error(Code::kInternal, "Loader", "a packet longer than itself");
    tail = std::min(tail, spill->size);
    std::byte* bytes = spill->bytes.get();
    return decoded(decode({bytes, tree}, {bytes + tail, spill->size - tail}, spill, arena_of_));
  }
  auto region = arena_of_(unit.block.arena);
  if (region == nullptr) check_open();
  if (region == nullptr) throw Error(Code::kInternal, "Loader", "a result without its arena");
  Lease lease(region, {unit.block.offset, unit.block.bytes, unit.block.generation, 0});
  return decoded(decode({lease.data(), unit.length}, {}, nullptr, arena_of_));
}

void Core::let_go(Unit& unit) {
  if (pipeline_ != nullptr && !processes_) {
    plan_losses(unit);
    return;
  }
  WithGil locked;  // settle() comes without
  try {
    unit_value(unit);
  } catch (...) {
    PyErr_Clear();  // nobody wanted it
  }
}

void Core::note_losses(PyObject* list, uint64_t epoch) {
  ConsumerCounters& counters = board_->consumer();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* loss = PyList_GET_ITEM(list, i);
    bool replaced = PyTuple_GET_ITEM(loss, 3) == Py_True;
    (replaced ? counters.replaced : counters.skipped).add_single_writer();
    const char* reason = PyUnicode_AsUTF8(PyTuple_GET_ITEM(loss, 2));
    if (reason == nullptr) PyErr_Clear();
    losses_.push_back({epoch, PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(loss, 1)),
                       reason == nullptr ? "" : reason});
  }
}

// The batch that poll() found; a null object if it vanished (skipped), to be asked for again.
nb::object Core::take() {
  Post& post = feed_->current();
  if (pipeline_ != nullptr) return take_plan(post);
  uint64_t seq = feed_->current_seq();
  if (auto g = feed_->failed_granule()) {
    Unit& unit = board_->unit_at(seq, *g);
    raise_failure(unit, ticket_of({&post, &unit, seq, *g, 0, 0}));
  }
  Unit& unit = board_->unit_at(seq, 0);
  uint64_t bytes = unit.bytes;
  uint64_t samples = post.rows;
  switch (unit.kind) {
    case ResultKind::kPacket: {
      nb::object batch = unit_value(unit);
      feed_->deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kReplaced: {
      nb::object pair = unit_value(unit);
      note_losses(PyTuple_GET_ITEM(pair.ptr(), 1), post.epoch);
      nb::object batch = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 0));
      feed_->deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kEnd: {
      nb::object lost = unit_value(unit);
      if (PyList_Check(lost.ptr())) note_losses(lost.ptr(), post.epoch);
      feed_->end_stream();
      return nb::object();
    }
    case ResultKind::kSkipped: {
      nb::object lost = unit_value(unit);
      if (PyList_Check(lost.ptr())) note_losses(lost.ptr(), post.epoch);
      feed_->skip();
      return nb::object();
    }
    default:
      return take_rows(post);
  }
}

nb::object Core::take_rows(Post& post) {
  uint64_t seq = feed_->current_seq();
  uint64_t bytes = 0;
  uint64_t rows = 0;
  std::vector<uint32_t> lost;
  nb::object objects;
  uint32_t share = (post.rows + post.granules - 1) / post.granules;
  for (uint32_t g = 0; g < post.granules; ++g) {
    Unit& unit = board_->unit_at(seq, g);
    uint32_t begin = std::min(g * share, post.rows);
    uint32_t end = std::min(begin + share, post.rows);
    bytes += unit.bytes;
    nb::object value = unit_value(unit);
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
      if (plan_.source == PlanSettings::Source::kMap) {
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
    feed_->skip();
    return nb::object();
  }
  std::span<const std::byte> spec(post.layout, post.layout_length);
  if (spec_rows_ != post.rows || spec_.size() != spec.size() ||
      std::memcmp(spec_.data(), spec.data(), spec.size()) != 0) {
    layout_ = layout_of(spec, post.rows);
    spec_.assign(spec.begin(), spec.end());
    spec_rows_ = post.rows;
  }
  Lease lease = feed_->take_rows();
  std::byte* base = lease.data();
  layout_.close_gaps(base, lost);
  nb::object owner = steal(owner_capsule(lease.owner()));
  nb::object batch = steal(batch_of(spec_, layout_, base, rows, owner.ptr(),
                                    objects.is_valid() ? objects.ptr() : nullptr));
  feed_->deliver(bytes, rows);
  return batch;
}

// What a row of the post in hand was asked for by. None: nobody can say.
nb::object Core::index_of(const Ticket& ticket, uint32_t row) {
  row += ticket.begin;
  uint64_t index = 0;
  if (pipeline_ != nullptr) {
    pipeline_->locate(ticket.epoch, ticket.base, ticket.step, row, {&index, 1});
  } else if (listed_ != nullptr) {
    const uint64_t offset = feed_->current().indices_offset;
    if (offset == 0) return nb::none();
    PythonWorker::Indices indices;
    const std::byte* listed = rows_->at(offset);
    if (PythonWorker::load_listed(listed, row, row + 1, indices)) {
      if (!indices.objects) return steal(indices.at(0));
      if (PyList_GET_SIZE(indices.objects.get()) == 1) return steal(indices.at(0));
    }
    clear_trouble();
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return nb::none();
  } else if (indexed_ != nullptr) {
    order_.indices(ticket.epoch, ticket.base, ticket.step, row, {&index, 1});
  } else {
    index = (ticket.base + ticket.step) * order_.options().batch_size + row;
  }
  return nb::cast(index);
}

void Core::raise_failure(Unit& unit, const Ticket& ticket) {
  static const char* const names[] = {"", "", "", "", "error", "", "", "timeout", "lost", "room"};
  const char* kind = names[static_cast<uint32_t>(unit.kind)];
  uint32_t worker = unit.worker;
  nb::object detail = nb::none(), index = nb::none(), last = nb::none();
  const char* call = "";
  if (unit.kind == ResultKind::kError) {
    detail = unit_value(unit);
  } else if (unit.kind == ResultKind::kNoRoom) {
    detail = nb::str(reinterpret_cast<const char*>(unit.packet), unit.length);
  } else {
    const uint32_t what = pipeline_ == nullptr ? Call::of(unit.in_hand.load()).what : 0;
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
  feed_->fail();
  failed_ = true;
  PyObject* make = helper("penstock._interop", "failure");
  if (make == nullptr) throw nb::python_error();
  nb::object chain = nb::none();
  if (pipeline_ != nullptr) chain = nb::cast(pipeline_->titles());
  nb::object exception =
      nb::borrow(make)(kind, detail, ticket.epoch, ticket.step, index, worker, chain, last, call);
  raise(exception);
}

void Core::begin_epoch() {
  ConsumerLock lock = consume();
  check_open();
  feed_->begin_epoch();
}

void Core::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock = consume();
  check_open();
  feed_->seek({epoch, base, step}, {ahead.begin(), ahead.end()});
  failed_ = false;
}

nb::tuple Core::position() {
  const Position at = output_ == nullptr ? feed_->position() : output_->position();
  return nb::make_tuple(at.epoch, at.base, at.step);
}

std::vector<uint64_t> Core::ahead() { return {feed_->ahead().begin(), feed_->ahead().end()}; }

uint64_t Core::steps(uint64_t base) {
  return pipeline_ != nullptr ? pipeline_->known_length().value_or(kEndless) : order_.steps(base);
}

void Core::set_length(uint64_t length, uint64_t version) {
  ConsumerLock lock = consume();
  Order::Options options = order_.options();
  options.length = length;
  order_ = Order(options);
  plan_.order = options;
  if (indexed_ != nullptr) indexed_->set_order(order_);
  feed_->set_version(version);
}

}  // namespace penstock::python
