#include "python_batches.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "failures.h"
#include "numpy_api.h"
#include "sample.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

// Appends the values of each column.
void append_columns(PyObject* to, PyObject* more) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(more); ++i) {
    PyObject* column = PyList_GET_ITEM(to, i);
    const Py_ssize_t end = PyList_GET_SIZE(column);
    if (PyList_SetSlice(column, end, end, PyList_GET_ITEM(more, i)) != 0) throw nb::python_error();
  }
}

}  // namespace

nb::object PythonBatches::take() {
  const BatchEntry& entry = engine_.scheduler().current();
  Task& task = engine_.ring().task_at(engine_.scheduler().current_seq(), 0);
  const uint64_t bytes = task.bytes;
  const uint64_t samples = entry.rows;
  switch (task.kind) {
    case ResultKind::kPacket: {
      nb::object batch = values_.take(task);
      engine_.scheduler().deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kReplaced: {
      nb::object pair = values_.take(task);
      add_losses(PyTuple_GET_ITEM(pair.ptr(), 1), entry);
      nb::object batch = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 0));
      engine_.scheduler().deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kEnd:
      add_losses(values_.take(task), entry);
      engine_.scheduler().end_stream();
      return {};
    case ResultKind::kSkipped:
      add_losses(values_.take(task), entry);
      engine_.scheduler().skip();
      return {};
    default:
      return take_rows();
  }
}

void PythonBatches::add_losses(nb::handle list, const BatchEntry& entry) {
  engine_.add_losses(losses_in(list.ptr()), entry.epoch);
}

nb::object PythonBatches::take_rows() {
  Scheduler& scheduler = engine_.scheduler();
  const BatchEntry& entry = scheduler.current();
  const Rows rows = collect(entry);
  if (rows.made == 0) {
    scheduler.skip();
    return {};
  }
  set_layout(entry);
  Lease lease = scheduler.take_rows();
  std::byte* base = lease.data();
  layout_.compact_rows(base, rows.lost);
  columns_.clear();
  for (size_t field = 0; field < layout_.fields().size(); ++field) {
    columns_.push_back(layout_.column(base, field));
  }
  Owned owner(owner_capsule(lease.owner()));
  PyObject* made =
      owner ? batch_of(spec_, columns_, rows.made, owner.get(), rows.objects.ptr()) : nullptr;
  if (made == nullptr) throw nb::python_error();
  nb::object batch = nb::steal(made);
  scheduler.deliver(rows.bytes, rows.made);
  return batch;
}

PythonBatches::Rows PythonBatches::collect(const BatchEntry& entry) {
  const uint64_t seq = engine_.scheduler().current_seq();
  const uint32_t share = (entry.rows + entry.granules - 1) / entry.granules;
  Rows rows;
  for (uint32_t g = 0; g < entry.granules; ++g) {
    Task& task = engine_.ring().task_at(seq, g);
    const uint32_t begin = std::min(g * share, entry.rows);
    const uint32_t end = std::min(begin + share, entry.rows);
    rows.bytes += task.bytes;
    nb::object value = values_.take(task);
    if (value.is_none()) {
      rows.made += end - begin;
      continue;
    }
    rows.made += PyLong_AsUnsignedLong(PyTuple_GET_ITEM(value.ptr(), 0));
    const std::vector<Loss> losses = losses_in(PyTuple_GET_ITEM(value.ptr(), 1));
    PyObject* objects = PyTuple_GET_ITEM(value.ptr(), 2);
    engine_.add_losses(losses, entry.epoch);
    for (const Loss& loss : losses) {
      if (!loss.gap) continue;
      rows.lost.push_back(begin + loss.row);
      --rows.made;
    }
    if (objects == Py_None) continue;
    if (rows.objects.is_valid()) {
      append_columns(rows.objects.ptr(), objects);
    } else {
      rows.objects = nb::borrow(objects);
    }
  }
  return rows;
}

void PythonBatches::set_layout(const BatchEntry& entry) {
  const std::span<const std::byte> spec(entry.layout, entry.layout_length);
  if (spec_rows_ == entry.rows && spec_.size() == spec.size() &&
      std::memcmp(spec_.data(), spec.data(), spec.size()) == 0) {
    return;
  }
  layout_ = layout_of(spec, entry.rows);
  spec_.assign(spec.begin(), spec.end());
  spec_rows_ = entry.rows;
}

}  // namespace penstock::python
