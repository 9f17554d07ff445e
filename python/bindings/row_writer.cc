#include "row_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "codec.h"
#include "penstock/base/error.h"

namespace penstock::python {

void RowWriter::begin() {
  base_ = nullptr;
  columns_ = Owned();
  unlike_ = false;
}

bool RowWriter::add(Slot& slot, PyObject* sample, uint32_t row, uint64_t index) {
  struct Release {
    Sample& of;
    ~Release() { of.release(); }
  } release{taken_};
  if (!taken_.take_apart(sample) || !place(slot, index)) return false;
  std::vector<Owned> objects;
  for (PyObject* object : taken_.objects) {
    // Copy now: the next sample may overwrite an array that belongs to the dataset.
    uint64_t bytes = 0;
    objects.push_back(Owned(detach(Py_NewRef(object), slot.counters(), bytes)));
    if (!objects.back()) return false;
  }
  {
    const WorkerTimes::Piece piece = times_.begin(WorkerTimes::kRows, 1);
    Slot::Write ours(slot);  // after a timeout, the consumer may already have the batch
    if (!ours) throw Error(Code::kClosed, "worker", "the ticket was taken away");
    const uint32_t to = slot.ticket().begin + row;
    if (!write_row(taken_, known_layout_, base_, to, slot.counters())) return false;
  }
  return objects.empty() || add_objects(objects);
}

// Makes base_ and known_layout_ those of the sample's batch.
bool RowWriter::place(Slot& slot, uint64_t index) {
  if (base_ != nullptr) return taken_.spec == known_spec_ || refuse_unlike(slot, index);
  const uint64_t rows = slot.ticket().rows;
  if (taken_.spec != known_spec_ || known_rows_ != rows) {
    known_layout_ = layout_of(taken_.spec, rows);
    known_spec_ = taken_.spec;
    known_rows_ = rows;
  }
  base_ = slot.memory(taken_.spec, known_layout_.bytes());
  return base_ != nullptr || refuse_unlike(slot, index);
}

// The error of a sample that differs from the batch's others.
bool RowWriter::refuse_unlike(Slot& slot, uint64_t index) {
  const std::vector<std::byte> expected = base_ != nullptr ? known_spec_ : slot.layout();
  std::string text = "samples of one batch must be alike: index " + std::to_string(index) +
                     " gave " + describe(taken_.spec) + ", another sample of its batch " +
                     describe(expected) + "; make them equal, or give collate=";
  PyObject* type = helper("penstock.errors", "InvalidArgument");
  PyErr_SetString(type != nullptr ? type : PyExc_ValueError, text.c_str());
  unlike_ = true;
  return false;
}

bool RowWriter::add_objects(const std::vector<Owned>& objects) {
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

uint64_t RowWriter::bytes_of(uint32_t rows) const {
  if (base_ == nullptr) return 0;
  return known_layout_.bytes() / std::max<uint64_t>(known_rows_, 1) * rows;
}

}  // namespace penstock::python
