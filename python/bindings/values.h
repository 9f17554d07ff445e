#pragma once

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

// Whether this reference is the only one to the array's memory. reason: why not.
bool owns_its_memory(PyArrayObject* array, bool unique, PyArrayObject*& root, CopyReason& reason);

}  // namespace penstock::python
