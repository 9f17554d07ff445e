// PythonWorker for items that are samples: rows of a batch, written in place or collated.
#include <algorithm>
#include <cstring>
#include <utility>

#include "gil.h"
#include "penstock/base/error.h"
#include "python_op.h"
#include "python_worker.h"
#include "random.h"
#include "sample_spec.h"

namespace penstock::python {

// Writes one sample into its row. False: an exception is set, and nothing was added.
bool PythonWorker::add_row(const Ticket& ticket, Slot& slot, PyObject* sample, uint32_t row,
                           uint64_t index, uint32_t whole) {
  struct Release {
    Sample& of;
    ~Release() { of.release(); }
  } release{taken_};
  if (!taken_.take_apart(sample)) return false;
  if (base_ == nullptr || taken_.spec != known_spec_) {
    if (taken_.spec != known_spec_ || known_rows_ != whole) {
      RowLayout layout = layout_of(taken_.spec, whole);
      if (base_ == nullptr) {
        known_layout_ = std::move(layout);
        known_spec_ = taken_.spec;
        known_rows_ = whole;
      }
    }
    std::byte* base = base_ != nullptr ? nullptr : slot.memory(taken_.spec, known_layout_.bytes());
    if (base == nullptr) return refuse_unlike(slot, index);
    base_ = base;
  }
  std::vector<Owned> objects;
  for (PyObject* object : taken_.objects) {
    // Copy now: the next sample may overwrite an array that belongs to the dataset.
    uint64_t bytes = 0;
    objects.push_back(Owned(detach(Py_NewRef(object), slot.counters(), bytes)));
    if (!objects.back()) return false;
  }
  {
    StageClock::Piece piece(clock_, writes_, kRows);
    clock_.count(kRows, 1);
    Slot::Write ours(slot);  // after a timeout, the consumer may already have the batch
    if (!ours) throw Error(Code::kClosed, "worker", "the ticket was taken away");
    if (!write_row(taken_, known_layout_, base_, ticket.begin + row, slot.counters())) return false;
  }
  return objects.empty() || add_objects(objects);
}

bool PythonWorker::add_objects(const std::vector<Owned>& objects) {
  if (!columns_) columns_ = Owned(PyList_New(0));
  for (size_t i = 0; columns_ && i < objects.size(); ++i) {
    if (PyList_GET_SIZE(columns_.get()) <= static_cast<Py_ssize_t>(i)) {
      Owned column(PyList_New(0));
      if (!column || PyList_Append(columns_.get(), column.get()) != 0) return false;
    }
    PyObject* column = PyList_GET_ITEM(columns_.get(), static_cast<Py_ssize_t>(i));
    if (PyList_Append(column, objects[i].get()) != 0) return false;
  }
  return static_cast<bool>(columns_);
}

// The error of a sample that differs from the batch's others.
bool PythonWorker::refuse_unlike(Slot& slot, uint64_t index) {
  const std::vector<std::byte> expected = base_ != nullptr ? known_spec_ : slot.layout();
  std::string text = "samples of one batch must be alike: index " + std::to_string(index) +
                     " gave " + describe(taken_.spec) + ", another sample of its batch " +
                     describe(expected) + "; make them equal, or give collate=";
  PyObject* type = helper("penstock.errors", "InvalidArgument");
  PyErr_SetString(type != nullptr ? type : PyExc_ValueError, text.c_str());
  unlike_ = true;
  return false;
}

void PythonWorker::finish_rows(const Ticket& ticket, Slot& slot, uint32_t count) {
  uint64_t bytes =
      base_ == nullptr ? 0 : known_layout_.bytes() / std::max<uint64_t>(known_rows_, 1) * count;
  slot.counters().bytes.add_single_writer(bytes);
  if (losses_.empty() && !columns_ && count == ticket.end - ticket.begin) {
    slot.finish_inline(ResultKind::kRows, bytes, {});
    return;
  }
  Owned lost = list_of(losses_), columns = columns_ ? std::move(columns_) : Owned::borrow(Py_None);
  Owned value(Py_BuildValue("(IOO)", count, lost.get(), columns.get()));
  columns = Owned();  // nothing else refers to its copies
  emit(slot, ResultKind::kRows, std::move(value), bytes);
}

// __getitems__: all rows in one call. The samples stay null if the call raised, or killed a worker
// before: then they are fetched one by one, to identify the failing sample. An exception to raise
// stays set.
void PythonWorker::fetch_all(const Ticket& ticket, Slot& slot, std::vector<Owned>& samples) {
  uint32_t count = ticket.end - ticket.begin;
  if (slot.any_poisoned()) return;
  slot.progress({.what = kAllAtOnce});
  uint64_t key = key_of(ticket, 0);
  Owned all = tried([&] {
    set_ticket_key(settings_.order.seed, ticket.epoch, key);
    if (settings_.rekey_globals) rekey_globals(settings_.order.seed, ticket.epoch, key);
    return get_all(count);
  });
  if (!all) {
    if (is_error()) together_ = exception_in_flight();
    return;
  }
  auto given = static_cast<size_t>(PySequence_Fast_GET_SIZE(all.get()));
  if (given != count) {
    std::string text = "__getitems__ was asked for " + std::to_string(count) +
                       " samples and returned " + std::to_string(given);
    PyObject* type = helper("penstock.errors", "InvalidArgument");
    PyErr_SetString(type != nullptr ? type : PyExc_ValueError, text.c_str());
    return;
  }
  for (uint32_t row = 0; row < count; ++row) {
    samples[row] = Owned::borrow(PySequence_Fast_GET_ITEM(all.get(), row));
  }
}

// One call of __getitems__; its result as a list or tuple.
Owned PythonWorker::get_all(uint32_t count) {
  Owned list(PyList_New(count));
  for (uint32_t row = 0; list && row < count; ++row) {
    PyList_SET_ITEM(list.get(), row, indices_.at(row));
  }
  if (!list) return list;
  StageClock::Piece piece(clock_, gets_, kGet);
  clock_.count(kGet, count);
  StayWhenEnded stay;
  Owned all(PyObject_CallOneArg(getitems_.get(), list.get()));
  if (all) all = Owned(PySequence_Fast(all.get(), "__getitems__ must return a list"));
  stay.returned();
  return all;
}

// Fetching all samples at once raised, and fetching one sample raised, too. If samples cannot be
// fetched one by one, the first exception has the reason.
void PythonWorker::tell_together() {
  if (PyMapping_Check(source_.get()) == 0 || PyErr_ExceptionMatches(PyExc_NotImplementedError)) {
    PyErr_Clear();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(together_.get())), together_.get());
    return;
  }
  Owned alone = exception_in_flight();
  Owned before(PyException_GetContext(alone.get()));
  if (!before && alone.get() != together_.get()) {
    PyException_SetContext(alone.get(), Py_NewRef(together_.get()));
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(alone.get())), alone.get());
}

void PythonWorker::run_rows(const Ticket& ticket, Slot& slot) {
  uint32_t count = ticket.end - ticket.begin, row = 0;
  std::vector<Owned> fetched(count);
  if (getitems_) fetch_all(ticket, slot, fetched);
  if (PyErr_Occurred() != nullptr) return fail_batch(ticket, slot);
  const Use write = [&](PyObject* value, uint64_t index) {
    return add_row(ticket, slot, value, row, index, ticket.rows);
  };
  for (; row < count; ++row) {
    if (sample(ticket, slot, row, std::move(fetched[row]), write)) continue;
    if (PyErr_Occurred() != nullptr) return fail(ticket, slot, row, key_of(ticket, row));
  }
  note_together();
  finish_rows(ticket, slot, count);
}

Owned PythonWorker::collated(Slot& slot, PyObject* samples, uint32_t last) {
  if (!slot.progress({.row = last, .what = kCollating})) {
    throw Error(Code::kClosed, "worker", "the ticket was taken away");
  }
  return tried([&] {
    StageClock::Piece piece(clock_, collates_, kCollate);
    clock_.count(kCollate, static_cast<uint64_t>(PyList_GET_SIZE(samples)));
    StayWhenEnded stay;
    Owned batch(PyObject_CallOneArg(collate_.get(), samples));
    stay.returned();
    return batch;
  });
}

void PythonWorker::run_collate(const Ticket& ticket, Slot& slot) {
  uint32_t count = ticket.end - ticket.begin;
  std::vector<Owned> fetched(count);
  if (getitems_) fetch_all(ticket, slot, fetched);
  if (PyErr_Occurred() != nullptr) return fail_batch(ticket, slot);
  Owned samples(PyList_New(0));
  const Use append = [&](PyObject* value, uint64_t) {
    return PyList_Append(samples.get(), value) == 0;
  };
  for (uint32_t row = 0; row < count; ++row) {
    if (sample(ticket, slot, row, std::move(fetched[row]), append)) continue;
    if (PyErr_Occurred() != nullptr) return fail(ticket, slot, row, key_of(ticket, row));
  }
  note_together();
  if (PyList_GET_SIZE(samples.get()) == 0)
    return emit(slot, ResultKind::kSkipped, list_of(losses_));
  Owned batch = collated(slot, samples.get(), count - 1);
  samples = Owned();
  if (!batch) return fail_batch(ticket, slot);
  emit_with_losses(slot, std::move(batch));
}

}  // namespace penstock::python
