#pragma once

#include <cstddef>
#include <vector>

#include "numpy_api.h"

namespace penstock::python {

// One sample taken apart: its structure as bytes (equal bytes: samples that batch together), its
// arrays, and what is no array. The structure is what travels as a batch's layout:
//
//   spec := 'a' dtype u8 ndim i64 shape*    an array or number: a column
//         | 'x' u32 dtype name, spec('a')   a torch tensor
//         | 'o'                             anything else: a list of objects
//         | 'T' u32 spec* | 'L' u32 spec* | 'M' class u32 spec* | 'D' u32 (packet key, spec)*
//   dtype := u8 NumPy's type number, or 255 u32 pickle
struct Sample {
  // Text has as many characters in every sample, so it is a column like any other dtype: true for
  // rows of an array, where a sample's own text is an object.
  bool fixed_width_text = false;

  std::vector<std::byte> spec;
  std::vector<PyArrayObject*> arrays;
  std::vector<PyObject*> objects;
  std::vector<Owned> keep;  // those, which other threads may take out of the sample meanwhile

  // False: a Python exception is set.
  bool take_apart(PyObject* sample);
  // Of all but the structure.
  void release();

 private:
  bool node(PyObject* value, int depth);
  bool array(PyArrayObject* array);
  bool object(PyObject* object);
};

}  // namespace penstock::python
