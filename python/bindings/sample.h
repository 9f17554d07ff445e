#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "numpy_api.h"
#include "penstock/memory/batch_layout.h"
#include "penstock/observe/counters.h"

namespace penstock::python {

// One sample, split into its structure as bytes, its arrays, and its other values. Samples with
// equal structures can be batched. A batch's layout is its structure:
//
//   spec := 'a' dtype u8 ndim i64 shape*    an array or number: a column
//         | 'x' u32 dtype name, spec('a')   a torch tensor
//         | 'o'                             anything else: a list of objects
//         | 'T' u32 spec* | 'L' u32 spec* | 'M' class u32 spec* | 'D' u32 (packet key, spec)*
//   dtype := u8 NumPy's type number, or 255 u32 pickle
struct Sample {
  // Text has the same number of characters in every sample, so it is a column like any other dtype.
  // True for rows of an array; the text of other samples is an object.
  bool fixed_width_text = false;

  std::vector<std::byte> spec;
  std::vector<PyArrayObject*> arrays;
  std::vector<PyObject*> objects;
  std::vector<Owned> keep;  // owns these, because other threads may remove them from the sample

  // False: a Python exception is set.
  bool take_apart(PyObject* sample);
  // Releases everything except the structure.
  void release();

 private:
  bool node(PyObject* value, int depth);
  bool array(PyArrayObject* array);
  bool object(PyObject* object);
};

// The columns of a structure, in the order of Sample::arrays.
RowLayout layout_of(std::span<const std::byte> spec, uint64_t rows);

// Writes a sample's arrays into its row of the batch. False: a Python exception is set.
bool write_row(const Sample& sample, const RowLayout& layout, std::byte* base, uint64_t row,
               WorkerCounters& counters);

// The batch as Python objects over its columns' memory, whose owner is `owner` (borrowed; kept by
// every array). objects: a list with one list per 'o' column. nullptr: exception.
PyObject* batch_of(std::span<const std::byte> spec, std::span<std::byte* const> columns,
                   uint64_t rows, PyObject* owner, PyObject* objects);

// "array of float32 with shape (3, 4)", "(int64, array ...)": for the message about ragged samples.
std::string describe(std::span<const std::byte> spec);

}  // namespace penstock::python
