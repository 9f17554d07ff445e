#include "values.h"

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

}  // namespace penstock::python
