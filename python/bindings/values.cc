#include "values.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace penstock::python {

bool only_ours(PyObject* object) {
#ifdef Py_GIL_DISABLED
  (void)object;
  return false;  // reference counts of other threads are not visible: always copy
#else
  return Py_REFCNT(object) == 1;
#endif
}

bool is_namedtuple(PyObject* value) {
  return PyTuple_Check(value) && !PyTuple_CheckExact(value) &&
         PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(value)), "_fields");
}

bool is_plain_dataclass(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return false;
  PyObject* cls = reinterpret_cast<PyObject*>(type);
  if (!PyObject_HasAttrString(cls, "__dataclass_fields__")) return false;
  PyObject* check = helper("penstock.base.interop", "is_plain_dataclass");
  if (check == nullptr) {
    PyErr_Clear();
    return false;
  }
  Owned answer(PyObject_CallOneArg(check, cls));
  if (!answer) PyErr_Clear();
  return answer.get() == Py_True;
}

bool is_torch_tensor(PyObject* value) {
  PyObject* type = torch_tensor_type();
  return type != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(value)) == type;
}

Parts::Parts(PyObject* container, bool unique) : unique_(unique) {
  if (unique || PyTuple_Check(container)) {
    held_ = Owned::borrow(container);
  } else if (PyList_Check(container)) {
    held_ = Owned(PyList_GetSlice(container, 0, PyList_GET_SIZE(container)));
  } else {
    held_ = Owned(PyDict_Copy(container));
  }
}

Parts Parts::of_fields(PyObject* object, bool unique) {
  Owned fields(PyObject_GetAttrString(object, "__dict__"));
  if (!fields) return Parts();
  return Parts(fields.get(), unique && Py_REFCNT(fields.get()) == 2);  // the object's, and ours
}

bool owns_its_memory(PyArrayObject* array, bool unique, PyArrayObject*& root, CopyReason& reason) {
  root = array;
  if (!unique) {
    reason = CopyReason::kReferenced;
    return false;
  }
  while (PyObject* base = PyArray_BASE(root)) {
    if (!PyArray_CheckExact(base)) {
      reason = CopyReason::kForeign;
      return false;
    }
    if (!only_ours(base)) {
      reason = CopyReason::kNotOwned;
      return false;
    }
    root = reinterpret_cast<PyArrayObject*>(base);
  }
  if (!PyArray_CHKFLAGS(root, NPY_ARRAY_OWNDATA)) {
    reason = CopyReason::kForeign;
    return false;
  }
  return true;
}

namespace {

constexpr npy_intp kNamedFile = 64 << 10;  // _arrays.py's _LARGE

// Whether the elements are contiguous, in any order of the axes.
bool is_dense(PyArrayObject* array) {
  if (PyArray_IS_C_CONTIGUOUS(array)) return true;
  std::vector<std::pair<npy_intp, npy_intp>> axes;  // stride, length
  for (int d = 0; d < PyArray_NDIM(array); ++d) {
    if (PyArray_DIM(array, d) > 1)
      axes.emplace_back(PyArray_STRIDE(array, d), PyArray_DIM(array, d));
  }
  std::sort(axes.begin(), axes.end());
  npy_intp next = PyArray_ITEMSIZE(array);
  for (auto [stride, length] : axes) {
    if (stride != next) return false;
    next *= length;
  }
  return true;
}

}  // namespace

bool PlainValue::array(PyArrayObject* array) {
  if (PyDataType_METADATA(PyArray_DESCR(array)) != nullptr) return false;
  if (PyArray_NBYTES(array) < kNamedFile) return true;
  PyObject* base = PyArray_BASE(array);
  while (base != nullptr && PyArray_Check(base)) {
    if (!PyArray_CheckExact(base)) return false;  // a memmap is not plain
    base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(base));
  }
  return true;
}

bool PlainValue::tensor(PyObject* tensor, PyArrayObject* over) {
  Owned attributes(PyObject_GetAttrString(tensor, "__dict__"));
  if (!attributes) PyErr_Clear();
  if (!attributes || PyObject_Size(attributes.get()) != 0 || !is_dense(over)) return false;
  const auto begin = reinterpret_cast<uintptr_t>(PyArray_DATA(over));
  const uintptr_t end = begin + PyArray_NBYTES(over);
  if (begin == end) return true;
  const auto next = tensors_.upper_bound(begin);
  if (next != tensors_.end() && next->first < end) return false;
  if (next != tensors_.begin() && std::prev(next)->second > begin) return false;
  tensors_.emplace(begin, end);
  return true;
}

}  // namespace penstock::python
