#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>

#include "numpy_api.h"
#include "penstock/observe/counters.h"

namespace penstock::python {

// How a value of user code may be handed over: for the encoder (from process to process) and for
// detach (in the same process). REQUIRED: the GIL. Leaves no exception set.

inline constexpr int kMaxDepth = 64;  // of nests; deeper values are one object

// Whether the caller's reference is the only one.
bool only_ours(PyObject* object);

bool is_namedtuple(PyObject* value);
// Whether it is a dataclass without state besides its __dict__.
bool is_plain_dataclass(PyObject* value);
bool is_torch_tensor(PyObject* value);
// Whether one of NumPy's type numbers has a fixed size and no parameters or references.
constexpr bool is_number(int type) { return (type >= 0 && type < NPY_OBJECT) || type == NPY_HALF; }

// The parts of a tuple, list or dict of user code, one after the other. While they are used, other
// threads may change a list or dict that they refer to: such a one is copied first.
class Parts {
 public:
  // `unique`: only the caller refers to the container.
  Parts(PyObject* container, bool unique);
  // The fields of a plain dataclass.
  static Parts of_fields(PyObject* object, bool unique);

  // False: a Python exception is set.
  explicit operator bool() const { return static_cast<bool>(held_); }
  Py_ssize_t size() const {
    PyObject* parts = held_.get();
    if (PyDict_Check(parts)) return PyDict_GET_SIZE(parts);
    return PyList_Check(parts) ? PyList_GET_SIZE(parts) : PyTuple_GET_SIZE(parts);
  }
  // Calls use(key, part, unique) until it returns false; then returns false. `key`: of a dict, or
  // nullptr.
  template <class Use>
  bool each(const Use& use) const {
    PyObject* parts = held_.get();
    if (PyDict_Check(parts)) {
      Py_ssize_t at = 0;
      PyObject *key, *part;
      while (PyDict_Next(parts, &at, &key, &part)) {
        if (!use(key, part, unique_ && only_ours(part))) return false;
      }
      return true;
    }
    const bool list = PyList_Check(parts);
    for (Py_ssize_t i = 0; i < size(); ++i) {
      PyObject* part = list ? PyList_GET_ITEM(parts, i) : PyTuple_GET_ITEM(parts, i);
      if (!use(static_cast<PyObject*>(nullptr), part, unique_ && only_ours(part))) return false;
    }
    return true;
  }

 private:
  Parts() = default;

  Owned held_;
  bool unique_ = false;
};

// Whether this reference is the only one to the array's memory. reason: why not.
bool owns_its_memory(PyArrayObject* array, bool unique, PyArrayObject*& root, CopyReason& reason);

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
