#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>

#include "numpy_api.h"

namespace penstock::python {

// Whether copies of a value's parts would be all that a pickle makes of it. For one value, with the
// GIL; no exception is left set.
class PlainValue {
 public:
  // A list, dict, array or tensor. False: it came before, and a pickle keeps it one object.
  bool first(PyObject* object) { return met_.insert(object).second; }
  // False: a pickle would name its file, or its dtype says more than its kind.
  static bool array(PyArrayObject* array);
  // `over`: its memory. False: it has attributes of its own, gaps between its elements (a pickle
  // keeps its strides), or memory that another tensor has, too (a pickle keeps it shared).
  bool tensor(PyObject* tensor, PyArrayObject* over);

 private:
  std::unordered_set<PyObject*> met_;
  std::map<uintptr_t, uintptr_t> tensors_;  // begin and end of each one's memory
};

}  // namespace penstock::python
