#pragma once

#include <string>

#include "numpy_api.h"
#include "penstock/pipeline/element/element.h"

namespace penstock::python {

// A value of user code as a leaf, so far as it is one. With the GIL held.
struct LeafValue {
  LeafKind kind = LeafKind::kDense;
  DType dtype = DType::kUint8;
  PyArrayObject* array = nullptr;  // borrowed, or `made`
  PyObject* scalar = nullptr;      // if it is no array: a number, bytes or str; borrowed
  Owned made;                      // an array that was made of the value
  Owned axes;                      // of penstock.ragged(): those that differ, a tuple

  // False: `why` says why not, in words that follow the value's name; no exception is set. What
  // user code raised that is no Exception (KeyboardInterrupt) is thrown: nanobind::python_error.
  bool take(PyObject* value, std::string& why);
  // Writes a number. REQUIRED: take() and no array; at least 16 bytes of space. False: an int that
  // is larger than an int64; no exception is set.
  bool write_number(std::byte* to) const;
  // The bytes of bytes or str. False: a str that has no UTF-8; no exception is set.
  bool string(const char*& data, Py_ssize_t& bytes) const;

 private:
  bool take_array(PyArrayObject* from, std::string& why);
  bool convert(PyObject* value, std::string& why);
};

// A dict, list or tuple, of whatever class.
inline bool is_container(PyObject* value) {
  return PyDict_Check(value) || PyTuple_Check(value) || PyList_Check(value);
}

}  // namespace penstock::python
