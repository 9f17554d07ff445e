#include "python_worker.h"

#include <functional>
#include <utility>

#include "gil.h"
#include "penstock/workers/link.h"
#include "random.h"

namespace penstock::python {

PythonWorker::PythonWorker(const SampleSettings& settings, PyObject* source, PyObject* collate,
                           PyObject* update, TicketRing& ring, const ResultOutlet::Target& target,
                           GilHandover* handover)
    : settings_(settings),
      ring_(ring),
      handover_(handover),
      link_(target.link),
      losses_(settings_),
      calls_(settings_, ring, times_),
      rows_(times_),
      outlet_(target, ring, times_),
      version_(settings.version) {
  if (collate != Py_None) collate_ = Owned::borrow(collate);
  if (update != Py_None) update_ = Owned::borrow(update);
  if (settings.source == SampleSettings::Source::kStream) {
    stream_.emplace(settings_, source, calls_, losses_);
  } else {
    map_.emplace(settings_, source, calls_, losses_);
  }
}

PythonWorker::~PythonWorker() = default;

void PythonWorker::before_wait() {
  outlet_.collect();
  released_ = PyEval_SaveThread();
}
void PythonWorker::after_wait() {
  StayWhenEnded stay;
  PyEval_RestoreThread(std::exchange(released_, nullptr));
  stay.returned();
}

bool PythonWorker::wanted() const { return handover_ != nullptr && handover_->wanted(); }
void PythonWorker::give_way() {
  before_wait();
  handover_->wait();
  after_wait();
}

// Updates the dataset to this version. False: the update raised.
bool PythonWorker::update(uint64_t version) {
  if (update_) {
    Owned wanted(PyLong_FromUnsignedLongLong(version));
    Owned length(PyObject_CallOneArg(update_.get(), wanted.get()));
    if (!length) return false;
    if (map_) map_->set_length(PyLong_AsUnsignedLongLong(length.get()));
  }
  version_ = version;
  return true;
}

// Reads updates from the link before a ticket needs them, because the link holds only a few.
void PythonWorker::catch_up() {
  if (link_ < 0) return;
  while (!late_ && !ring_.closed() && link_pending(link_)) {
    if (!update(version_ + 1)) late_ = exception_in_flight();
  }
}

void PythonWorker::run(const Ticket& ticket, Slot& slot) {
  times_.count_into(ring_.place(slot.claim().worker).stages);
  losses_.begin();
  rows_.begin();
  if (!late_ && ticket.version > version_ && !update(ticket.version)) late_ = exception_in_flight();
  if (late_) {  // for good: the state of the dataset is unknown
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(late_.get())), late_.get());
    return outlet_.fail(slot, {});
  }
  if (map_) {
    run_map(slot);
  } else {
    run_stream(slot);
  }
  clear_ticket_key();
  slot.counters().samples.add_single_writer(ticket.end - ticket.begin);
}

void PythonWorker::run_map(Slot& slot) {
  const Ticket& ticket = slot.ticket();
  const uint32_t count = ticket.end - ticket.begin;
  Kept kept = this->kept();
  const auto use = [&](PyObject* sample, uint32_t row, uint64_t key) {
    return add(slot, kept, sample, row, key);
  };
  const auto failed = map_->fetch(slot, std::cref(use));  // a reference needs no allocation
  if (failed) return outlet_.fail(slot, *failed);
  if (!finish(slot, std::move(kept), count, count - 1)) outlet_.fail(slot, map_->whole(ticket));
}

void PythonWorker::run_stream(Slot& slot) {
  Kept kept = this->kept();
  const auto use = [&](PyObject* item, uint32_t row, uint64_t ordinal) {
    return add(slot, kept, item, row, ordinal);
  };
  const auto pulled = stream_->pull(slot, std::cref(use));
  if (pulled.failed) return outlet_.fail(slot, *pulled.failed);
  // A batch that is short because of losses is not the last one: only the stream's end is.
  if (pulled.ended && (pulled.count == 0 || settings_.drop_last)) {
    return hand_over(slot, ResultKind::kEnd, losses_.list());
  }
  if (finish(slot, std::move(kept), pulled.count, pulled.last)) return;
  FailurePlace whole{.index = pulled.first};
  if (pulled.last != 0) whole.last = static_cast<int64_t>(pulled.first + pulled.last);
  outlet_.fail(slot, whole);
}

PythonWorker::Kept PythonWorker::kept() const {
  return {{}, settings_.samples && collate_ ? Owned(PyList_New(0)) : Owned()};
}

// Adds a sample to the ticket's result. False: a Python exception is set.
bool PythonWorker::add(Slot& slot, Kept& kept, PyObject* sample, uint32_t row, uint64_t index) {
  if (!settings_.samples) {
    kept.item = Owned::borrow(sample);
    return true;
  }
  if (collate_) return PyList_Append(kept.samples.get(), sample) == 0;
  if (rows_.add(slot, sample, row, index)) return true;
  if (rows_.unlike()) losses_.found_unlike();
  return false;
}

// Finishes the slot with the `count` samples that were added. `last`: the ticket's row of the last
// one. False: an exception of collate is set.
bool PythonWorker::finish(Slot& slot, Kept kept, uint32_t count, uint32_t last) {
  const bool made = !settings_.samples ? static_cast<bool>(kept.item)
                    : collate_         ? PyList_GET_SIZE(kept.samples.get()) > 0
                                       : count > 0;
  if (!made) {
    hand_over(slot, ResultKind::kSkipped, losses_.list());
  } else if (!settings_.samples) {
    hand_over_with_losses(slot, std::move(kept.item));
  } else if (!collate_) {
    finish_rows(slot, count);
  } else {
    Owned batch = collated(slot, kept.samples.get(), last);
    kept.samples = Owned();
    if (!batch) return false;
    hand_over_with_losses(slot, std::move(batch));
  }
  return true;
}

void PythonWorker::finish_rows(Slot& slot, uint32_t count) {
  const Ticket& ticket = slot.ticket();
  const uint64_t bytes = rows_.bytes_of(count);
  slot.counters().bytes.add_single_writer(bytes);
  Owned objects = rows_.take_objects();
  if (losses_.none() && !objects && count == ticket.end - ticket.begin) {
    slot.finish_inline(ResultKind::kRows, bytes, {});
    return;
  }
  Owned lost = losses_.list();
  Owned value(Py_BuildValue("(IOO)", count, lost.get(), objects ? objects.get() : Py_None));
  objects = Owned();  // nothing else refers to its copies
  hand_over(slot, ResultKind::kRows, std::move(value), bytes);
}

Owned PythonWorker::collated(Slot& slot, PyObject* samples, uint32_t last) {
  SampleCalls::progress(slot, {.row = last, .what = kCollating});
  return calls_.tried(slot, [&] {
    return calls_.once(WorkerTimes::kCollate, static_cast<uint64_t>(PyList_GET_SIZE(samples)),
                       [&] { return PyObject_CallOneArg(collate_.get(), samples); });
  });
}

// A batch with losses is handed over together with them.
void PythonWorker::hand_over_with_losses(Slot& slot, Owned value) {
  if (losses_.none()) return hand_over(slot, ResultKind::kPacket, std::move(value));
  Owned lost = losses_.list();
  Owned pair(lost ? PyTuple_Pack(2, value.get(), lost.get()) : nullptr);
  value = Owned();
  hand_over(slot, ResultKind::kReplaced, std::move(pair));
}

void PythonWorker::hand_over(Slot& slot, ResultKind kind, Owned value, uint64_t more_bytes) {
  if (outlet_.hand_over(slot, kind, std::move(value), more_bytes)) return;
  FailurePlace place;
  if (map_) place.index = map_->whole(slot.ticket()).index;
  outlet_.fail(slot, place);
}

}  // namespace penstock::python
