#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>

#include "numpy_api.h"

namespace penstock::python {

// Decides whether copying a value's parts gives the same result as a pickle. For one value, with
// the GIL held; leaves no exception set.
class PlainValue {
 public:
  // For a list, dict, array or tensor. False: it occurred before, and a pickle keeps it one object.
  bool first(PyObject* object) { return met_.insert(object).second; }
  // False: a pickle would name its file, or its dtype has more than a type number.
  static bool array(PyArrayObject* array);
  // `over`: an array over its memory. False: it has attributes of its own, gaps between its
  // elements (a pickle keeps its strides), or memory that another tensor shares (a pickle keeps it
  // shared).
  bool tensor(PyObject* tensor, PyArrayObject* over);

 private:
  std::unordered_set<PyObject*> met_;
  std::map<uintptr_t, uintptr_t> tensors_;  // begin and end of each one's memory
};

}  // namespace penstock::python
