#pragma once

#include "numpy_api.h"
#include "penstock/observe/counters.h"

namespace penstock::python {

// What a value of user code is, so far as handing it over goes: used by the encoder (from process
// to process) and by detach (in the same process). All with the GIL held; no exception is left set.

inline constexpr int kMaxDepth = 64;  // of nests; what lies deeper is one object

// No other reference leads to it than the caller's.
bool only_ours(PyObject* object);

bool is_namedtuple(PyObject* value);
// A dataclass that is nothing but its __dict__.
bool is_plain_dataclass(PyObject* value);
bool is_torch_tensor(PyObject* value);
// Of NumPy's type numbers: of fixed size, without parameters or references.
constexpr bool is_number(int type) { return (type >= 0 && type < NPY_OBJECT) || type == NPY_HALF; }

// Whether nothing but this reference leads to the array's memory. reason: why not.
bool owns_its_memory(PyArrayObject* array, bool unique, PyArrayObject*& root, CopyReason& reason);

}  // namespace penstock::python
