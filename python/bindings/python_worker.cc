#include "python_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gil.h"
#include "penstock/base/error.h"
#include "python_op.h"
#include "random.h"

namespace penstock::python {

namespace {

// Attempts to replace an item that is a whole batch, whose number of samples is unknown.
constexpr uint32_t kItemAttempts = 16;

}  // namespace

PyObject* PythonWorker::Indices::at(size_t row) const {
  if (objects) return Py_NewRef(PyList_GET_ITEM(objects.get(), static_cast<Py_ssize_t>(row)));
  return PyLong_FromUnsignedLongLong(numbers[row]);
}

PythonWorker::PythonWorker(const SampleSettings& settings, PyObject* source, PyObject* collate,
                           PyObject* update, TicketRing& ring, Outlet outlet)
    : settings_(settings),
      source_(Owned::borrow(source)),
      ring_(ring),
      outlet_(outlet),
      order_(settings.order),
      version_(settings.version) {
  if (collate != Py_None) collate_ = Owned::borrow(collate);
  if (update != Py_None) update_ = Owned::borrow(update);
  if (settings.source == SampleSettings::Source::kMap && settings.samples) {
    getitems_ = Owned(PyObject_GetAttrString(source, "__getitems__"));
    if (!getitems_) PyErr_Clear();
  }
  streams_.resize(settings.streams);
}

PythonWorker::~PythonWorker() = default;

void PythonWorker::before_wait() {
  if (outlet_.arena != nullptr) outlet_.arena->collect();
  released_ = PyEval_SaveThread();
}
void PythonWorker::after_wait() {
  StayWhenEnded stay;
  PyEval_RestoreThread(std::exchange(released_, nullptr));
  stay.returned();
}

bool PythonWorker::wanted() const {
  return outlet_.handover != nullptr && outlet_.handover->wanted();
}
void PythonWorker::give_way() {
  before_wait();
  outlet_.handover->wait();
  after_wait();
}

// Updates the dataset to this version. False: the update raised.
bool PythonWorker::update(uint64_t version) {
  if (update_) {
    Owned wanted(PyLong_FromUnsignedLongLong(version));
    Owned length(PyObject_CallOneArg(update_.get(), wanted.get()));
    if (!length) return false;
    Order::Options options = order_.options();
    options.length = PyLong_AsUnsignedLongLong(length.get());
    order_ = Order(options);
  }
  version_ = version;
  return true;
}

// Reads updates from the link before a ticket needs them, because the link holds only a few.
void PythonWorker::catch_up() {
  if (outlet_.link < 0) return;
  while (!late_ && !ring_.closed() && link_pending(outlet_.link)) {
    if (!update(version_ + 1)) late_ = exception_in_flight();
  }
}

void PythonWorker::run(const Ticket& ticket, Slot& slot) {
  if (packets_ == nullptr && outlet_.arena != nullptr) {
    packets_ = std::make_unique<Packets>(*outlet_.arena, outlet_.number, outlet_.link, ring_,
                                         slot.counters());
  }
  worker_ = slot.claim().worker;
  clock_.count_into(ring_.place(worker_).stages);
  losses_.clear();
  columns_ = Owned();
  base_ = nullptr;
  unlike_ = false;
  together_ = Owned();  // of an earlier ticket that ended with penstock's own error
  if (!late_ && ticket.version > version_ && !update(ticket.version)) late_ = exception_in_flight();
  if (late_) {  // for good: the state of the dataset is unknown
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(late_.get())), late_.get());
    return fail(ticket, slot, 0, 0);
  }
  if (settings_.source == SampleSettings::Source::kStream) {
    run_stream(ticket, slot);
  } else if (!load_indices(ticket, slot)) {
    fail(ticket, slot, 0, 0);
  } else if (!settings_.samples) {
    run_item(ticket, slot);
  } else if (collate_) {
    run_collate(ticket, slot);
  } else {
    run_rows(ticket, slot);
  }
  clear_ticket_key();
  together_ = Owned();  // its traceback refers to the dataset
  slot.counters().samples.add_single_writer(ticket.end - ticket.begin);
}

bool PythonWorker::load_indices(const Ticket& ticket, Slot& slot) {
  indices_.objects = Owned();
  if (const std::byte* listed = slot.input()) {
    return load_listed(listed, ticket.begin, ticket.end, indices_);
  }
  indices_.numbers.resize(ticket.end - ticket.begin);
  order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin, indices_.numbers);
  return true;
}

bool PythonWorker::load_listed(const std::byte* listed, uint32_t begin, uint32_t end,
                               Indices& out) {
  uint64_t header[2];  // 0: numbers, 1: a pickled list; bytes
  std::memcpy(header, listed, sizeof(header));
  listed += sizeof(header);
  if (header[0] == 0) {
    const auto* numbers = reinterpret_cast<const uint64_t*>(listed);
    out.numbers.assign(numbers + begin, numbers + end);
    return true;
  }
  PyObject* load = helper("penstock.base.interop", "load_class");
  Owned bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(listed),
                                        static_cast<Py_ssize_t>(header[1])));
  Owned all(load == nullptr || !bytes ? nullptr : PyObject_CallOneArg(load, bytes.get()));
  if (!all) return false;
  out.objects = Owned(PyList_GetSlice(all.get(), begin, end));
  return static_cast<bool>(out.objects);
}

// The key of random numbers: the index, or for a sampler's objects the position.
uint64_t PythonWorker::key_in(const Indices& indices, uint32_t at, const Ticket& ticket,
                              uint32_t row) const {
  if (!indices.objects) return indices.numbers[at];
  PyObject* item = PyList_GET_ITEM(indices.objects.get(), at);
  // Neither raises nor clears an exception, because the user's exception may be set.
  if (PyLong_CheckExact(item)) return PyLong_AsUnsignedLongLongMask(item);
  return order_.position(ticket.base, ticket.step, row);
}

Owned PythonWorker::attempt(const Ticket& ticket, PyObject* index, uint64_t key) {
  Owned value = tried([&] {
    set_ticket_key(settings_.order.seed, ticket.epoch, key);
    if (settings_.rekey_globals) rekey_globals(settings_.order.seed, ticket.epoch, key);
    StageClock::Piece piece(clock_, gets_, kGet);
    clock_.count(kGet, 1);
    StayWhenEnded stay;
    Owned got(PyObject_GetItem(source_.get(), index));
    stay.returned();
    return got;
  });
  if (!value && together_ && is_error()) tell_together();
  return value;
}

// False for Ctrl-C and sys.exit(), which no policy skips.
bool PythonWorker::is_error() { return PyErr_ExceptionMatches(PyExc_Exception) != 0; }

std::string PythonWorker::pending_error() {
  Owned exception = exception_in_flight();
  if (!exception) return "unknown";
  return text_of_exception(exception.get());
}

// Whether the policy continues after the current exception.
bool PythonWorker::passes_over() const {
  return settings_.on_error != OnError::kRaise && is_error() && !(unlike_ && settings_.falls_back);
}

// Converts the current exception into a loss, if the policy allows. False: the exception that is
// set afterwards must be raised.
bool PythonWorker::note_loss(uint32_t row, uint64_t index, bool replaced) {
  if (!passes_over()) return false;
  std::string reason = pending_error();
  if (PyErr_Occurred() != nullptr) return false;
  const bool gap = settings_.source == SampleSettings::Source::kMap && !replaced;
  losses_.push_back({row, index, replaced, std::move(reason), nullptr, {}, gap});
  return true;
}

Owned PythonWorker::get(const Ticket& ticket, Slot& slot, uint32_t row, uint64_t key) {
  if (!slot.progress({row})) throw Error(Code::kClosed, "worker", "the ticket was taken away");
  if (slot.ending({row})) {
    PyErr_SetString(PyExc_RuntimeError, kPoisoned);
    return {};
  }
  Owned index(indices_.at(row));
  return attempt(ticket, index.get(), key);
}

// Fetches one row's sample, unless it was fetched before, and uses it, under the error policy.
// False with an exception set: it must be raised. False without: the row is lost, and noted.
bool PythonWorker::sample(const Ticket& ticket, Slot& slot, uint32_t row, Owned fetched,
                          const Use& use) {
  const uint64_t key = key_of(ticket, row);
  Owned value = fetched ? std::move(fetched) : get(ticket, slot, row, key);
  if (value && use(value.get(), key)) return true;
  value = Owned();
  if (passes_over() && settings_.on_error == OnError::kReplace) {
    return substitute(ticket, slot, row, key, use);
  }
  note_loss(row, key, false);
  return false;
}

// Replaces a sample that failed with the current exception by another sample. Results as sample().
bool PythonWorker::substitute(const Ticket& ticket, Slot& slot, uint32_t row, uint64_t key,
                              const Use& use) {
  Owned first = exception_in_flight();
  std::string reason = text_of_exception(first.get());
  if (PyErr_Occurred() != nullptr) return false;
  // Samples that a sampler leaves out must not be used. Of its indices only this batch's are known.
  const bool listed = slot.input() != nullptr && (indices_.objects || !settings_.covers);
  Indices others;
  if (listed && !load_listed(slot.input(), 0, ticket.rows, others)) return false;
  const uint64_t most = listed ? ticket.rows - 1 : order_.options().length;
  uint32_t left = settings_.samples ? ticket.rows : kItemAttempts;
  for (uint32_t n = 0; left > 0 && n < most; ++n) {
    PyErr_Clear();
    uint64_t other = key;
    Owned index = stand_in(ticket, row, n, others, other);
    if (!index && PyErr_Occurred() != nullptr) return false;
    if (!index) continue;  // the failed sample itself, which does not count
    --left;
    const Call call{row, n + 1};
    if (!slot.progress(call)) throw Error(Code::kClosed, "worker", "the ticket was taken away");
    if (slot.ending(call)) continue;
    Owned value = attempt(ticket, index.get(), other);
    if (value && use(value.get(), other)) {
      losses_.push_back({row, key, true, std::move(reason), nullptr, {}, false});
      return true;
    }
    if (!passes_over()) return false;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(first.get())), first.get());
  // No sample of the epoch works: raise the error of the sample itself, not of a replacement.
  if (listed) note_loss(row, key, false);
  return false;
}

// The n-th replacement of a row's index, and its key: from the other indices `listed` for the
// batch, beginning with the next one, or else from the whole epoch. Null: the row's own index, or
// an exception is set.
Owned PythonWorker::stand_in(const Ticket& ticket, uint32_t row, uint32_t n, const Indices& listed,
                             uint64_t& key) const {
  const uint32_t own = ticket.begin + row, at = (own + 1 + n) % ticket.rows;
  if (listed.objects) {
    PyObject* list = listed.objects.get();
    PyObject* index = PyList_GET_ITEM(list, at);
    const int same = PyObject_RichCompareBool(index, PyList_GET_ITEM(list, own), Py_EQ);
    if (same < 0) clear_error();  // arrays have no truth value: they count as different
    if (same > 0 || PyErr_Occurred() != nullptr) return {};
    key = key_in(listed, at, ticket, at);
    return Owned::borrow(index);
  }
  const uint64_t place = order_.position(ticket.base, ticket.step, own);
  const uint64_t other =
      listed.numbers.empty() ? order_.replacement(ticket.epoch, place, n) : listed.numbers[at];
  if (other == key) return {};
  key = other;
  return Owned(PyLong_FromUnsignedLongLong(other));
}

// Makes the exception that is set the ticket's result.
void PythonWorker::fail(const Ticket& ticket, Slot& slot, uint32_t row, uint64_t index,
                        int64_t last) {
  Owned exception = exception_in_flight();
  const FailurePlace place{slot.claim().worker, row, index, last};
  Owned value = outlet_.arena == nullptr ? failed_result(exception.get(), place)
                                         : packed_failed_result(exception.get(), ticket, place);
  exception = Owned();
  if (!value) {
    PyErr_Clear();
    value = Owned(Py_NewRef(Py_None));
  }
  emit(slot, ResultKind::kError, std::move(value));
}

void PythonWorker::emit(Slot& slot, ResultKind kind, Owned value, uint64_t extra_bytes) {
  if (!value) return fail(slot.ticket(), slot, 0, 0);
  uint64_t bytes = extra_bytes;
  if (outlet_.arena == nullptr) {
    PyObject* object = value.release();
    if (kind != ResultKind::kError) {
      object = detach(object, slot.counters(), bytes);
      if (object == nullptr) return fail(slot.ticket(), slot, 0, 0);
    }
    slot.counters().bytes.add_single_writer(bytes);
    if (!slot.finish_object(kind, bytes, object)) Py_DECREF(object);
    return;
  }
  {
    StageClock::Piece piece(clock_, hand_overs_, kHandOver);
    if (packets_->encode(value.get())) {
      clock_.count(kHandOver, 1);
      value = Owned();  // from now on only the leases own the blocks
      packets_->send(slot, kind, bytes);
      return;
    }
  }
  if (kind == ResultKind::kError) {
    PyErr_Clear();
    slot.finish_inline(ResultKind::kError, 0, {});
    return;
  }
  fail(slot.ticket(), slot, 0, indices_.numbers.empty() ? 0 : indices_.numbers.front());
}

// ---- an item is a whole batch

void PythonWorker::run_item(const Ticket& ticket, Slot& slot) {
  Owned item;
  auto keep = [&](PyObject* value, uint64_t) {
    item = Owned::borrow(value);
    return true;
  };
  sample(ticket, slot, 0, {}, keep);
  if (PyErr_Occurred() != nullptr) return fail(ticket, slot, 0, key_of(ticket, 0));
  if (!item) return emit(slot, ResultKind::kSkipped, list_of(losses_));
  emit_with_losses(slot, std::move(item));
}

// A batch with losses is handed over together with them.
void PythonWorker::emit_with_losses(Slot& slot, Owned value) {
  if (losses_.empty()) return emit(slot, ResultKind::kPacket, std::move(value));
  Owned lost = list_of(losses_);
  Owned pair(lost ? PyTuple_Pack(2, value.get(), lost.get()) : nullptr);
  value = Owned();
  emit(slot, ResultKind::kReplaced, std::move(pair));
}

}  // namespace penstock::python
