#pragma once

#include <Python.h>

#include <cstddef>
#include <span>
#include <string>

#include "numpy_api.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/scratch.h"

namespace penstock::python {

// A value of user code as a leaf, if it can be one. With the GIL held.
struct LeafValue {
  LeafKind kind = LeafKind::kDense;
  DType dtype = DType::kUint8;
  PyArrayObject* array = nullptr;  // borrowed, or `made`
  PyObject* scalar = nullptr;      // if it is not an array: a number, bytes or str; borrowed
  Owned made;                      // an array that was made from the value
  Owned axes;                      // of penstock.ragged(): the axes that differ, a tuple

  // False: `why` is the reason, in words that follow the value's name; no exception is set. If user
  // code raises something other than an Exception (KeyboardInterrupt), it is thrown as
  // nanobind::python_error.
  bool take(PyObject* value, std::string& why);
  // Writes a number. REQUIRED: take() returned true, and it is not an array; 16 bytes of space.
  // False: an int that does not fit into int64; no exception is set.
  bool write_number(std::byte* to) const;
  // The bytes of bytes or str. False: a str that cannot be encoded as UTF-8; no exception is set.
  bool string(const char*& data, Py_ssize_t& bytes) const;

 private:
  bool take_array(PyArrayObject* from, std::string& why);
  bool convert(PyObject* value, std::string& why);
};

// A dict, list or tuple, also of a subclass.
inline bool is_container(PyObject* value) {
  return PyDict_Check(value) || PyTuple_Check(value) || PyList_Check(value);
}

// A penstock.Ragged as a ColumnBlock in `scratch`. With the GIL held. Errors: kInvalidArgument for
// invalid parts; nanobind::python_error for exceptions of Python.
std::span<const std::byte> ragged_bytes(PyObject* ragged, Scratch& scratch);

}  // namespace penstock::python
