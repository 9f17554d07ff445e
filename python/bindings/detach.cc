#include <cstring>

#include "codec.h"
#include "python_op.h"
#include "values.h"

namespace penstock::python {

namespace {

PyObject* detached(PyObject* value, bool unique, int depth, WorkerCounters& counters,
                   uint64_t& bytes);

bool holds_objects(PyArray_Descr* descr) {
  return (descr->type_num == NPY_OBJECT || descr->type_num == NPY_VOID) &&
         PyDataType_FLAGCHK(descr, NPY_ITEM_REFCOUNT);
}

// Detaches the objects in an array without other references. False: a Python exception is set.
bool detach_items(PyArrayObject* array, bool& changed, int depth, WorkerCounters& counters,
                  uint64_t& bytes) {
  if (PyArray_TYPE(array) != NPY_OBJECT) {  // has fields, some of which are objects
    Owned names = Owned::borrow(PyDataType_NAMES(PyArray_DESCR(array)));
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names.get()); ++i) {
      PyObject* name = PyTuple_GET_ITEM(names.get(), i);
      Owned field(PyObject_GetItem(reinterpret_cast<PyObject*>(array), name));
      if (!field) return false;
      auto* view = reinterpret_cast<PyArrayObject*>(field.get());
      if (!PyArray_CheckExact(field.get()) || !holds_objects(PyArray_DESCR(view))) continue;
      if (!detach_items(view, changed, depth, counters, bytes)) return false;
    }
    return true;
  }
  Owned iterator(PyArray_IterNew(reinterpret_cast<PyObject*>(array)));
  if (!iterator) return false;
  auto* at = reinterpret_cast<PyArrayIterObject*>(iterator.get());
  while (PyArray_ITER_NOTDONE(at)) {
    PyObject* item;  // of a field, possibly not aligned
    std::memcpy(&item, PyArray_ITER_DATA(at), sizeof(item));
    if (item != nullptr) {
      PyObject* other = detached(item, false, depth + 1, counters, bytes);
      if (other == nullptr) return false;
      changed = changed || other != item;
      std::memcpy(PyArray_ITER_DATA(at), &other, sizeof(other));
      Py_DECREF(item);
    }
    PyArray_ITER_NEXT(at);
  }
  return true;
}

// An array of objects is copied, because its objects may be arrays that are reused. `handed_over`:
// it is not copied if no object in it changed.
PyObject* detached_objects(PyArrayObject* array, bool handed_over, int depth,
                           WorkerCounters& counters, uint64_t& bytes) {
  Owned made(PyArray_NewCopy(array, NPY_KEEPORDER));
  if (!made) return nullptr;
  auto* copy = reinterpret_cast<PyArrayObject*>(made.get());
  bool changed = false;
  if (!detach_items(copy, changed, depth, counters, bytes)) return nullptr;
  if (!changed && handed_over) return Py_NewRef(reinterpret_cast<PyObject*>(array));
  if (!PyArray_ISWRITEABLE(array)) PyArray_CLEARFLAGS(copy, NPY_ARRAY_WRITEABLE);
  return made.release();
}

bool is_plain_value(PyObject* value) {
  return value == Py_None || PyUnicode_Check(value) || PyBytes_Check(value) ||
         PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
}

// Containers of further classes (dict subclasses, deques, dataclasses with slots), which Python
// code takes apart. Containers that cannot be rebuilt are not changed.
PyObject* detached_container(PyObject* value, int depth, WorkerCounters& counters,
                             uint64_t& bytes) {
  PyObject* parts_of = helper("penstock.base.containers", "parts_of");
  Owned known(parts_of == nullptr ? nullptr : PyObject_CallOneArg(parts_of, value));
  Owned made;
  if (known && PyTuple_Check(known.get())) {
    PyObject* parts = PyTuple_GET_ITEM(known.get(), 0);
    bool changed = false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); ++i) {
      PyObject* part = PyList_GET_ITEM(parts, i);
      PyObject* other = detached(part, false, depth + 1, counters, bytes);
      if (other == nullptr) return nullptr;
      changed = changed || other != part;
      PyList_SetItem(parts, i, other);
    }
    if (changed) made = Owned(PyObject_CallOneArg(PyTuple_GET_ITEM(known.get(), 1), parts));
  }
  if (made) return made.release();
  clear_error();
  return PyErr_Occurred() != nullptr ? nullptr : Py_NewRef(value);
}

// The replacement of `value` (a new reference), which may be `value` itself. `unique`: only the
// caller refers to it. Copying lets other threads run, so a list or dict with other references is
// copied first and then traversed.
PyObject* detached(PyObject* value, bool unique, int depth, WorkerCounters& counters,
                   uint64_t& bytes) {
  if (PyArray_CheckExact(value) && depth < kMaxDepth &&
      holds_objects(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(value)))) {
    auto* array = reinterpret_cast<PyArrayObject*>(value);
    PyArrayObject* root;
    CopyReason reason = CopyReason::kForeign;
    bytes += PyArray_NBYTES(array);
    return detached_objects(array, owns_its_memory(array, unique, root, reason), depth, counters,
                            bytes);
  }
  if (PyArray_Check(value)) {
    auto* array = reinterpret_cast<PyArrayObject*>(value);
    bytes += PyArray_NBYTES(array);
    PyArrayObject* root;
    CopyReason reason = CopyReason::kForeign;
    // A subclass may keep references beyond those of its base: only plain arrays are handed over.
    if (PyArray_CheckExact(value) && owns_its_memory(array, unique, root, reason)) {
      if (PyArray_NBYTES(array) >= PyArray_NBYTES(root) / 2) {
        count_avoided_copy(counters, PyArray_NBYTES(array));
        return Py_NewRef(value);
      }
      reason = CopyReason::kSparse;
    }
    count_copy(counters, reason, PyArray_NBYTES(array));
    PyObject* copy = helper("penstock.base.interop", "copy_array");
    if (copy != nullptr && !PyArray_CheckExact(value)) return PyObject_CallOneArg(copy, value);
    PyObject* made = PyArray_NewCopy(array, NPY_KEEPORDER);
    if (made != nullptr && !PyArray_ISWRITEABLE(array)) {
      PyArray_CLEARFLAGS(reinterpret_cast<PyArrayObject*>(made), NPY_ARRAY_WRITEABLE);
    }
    return made;
  }
  if (is_torch_tensor(value)) {
    PyObject* copy = helper("penstock.base.interop", "copy_tensor");
    return copy == nullptr ? nullptr : PyObject_CallOneArg(copy, value);
  }
  if (depth >= kMaxDepth) return Py_NewRef(value);
  if (PyTuple_Check(value)) {
    Owned made(PyTuple_New(PyTuple_GET_SIZE(value)));
    if (!made) return nullptr;
    Py_ssize_t place = 0;
    bool changed = false;
    const bool done = Parts(value, unique).each([&](PyObject*, PyObject* part, bool ours) {
      PyObject* other = detached(part, ours, depth + 1, counters, bytes);
      changed = changed || other != part;
      PyTuple_SET_ITEM(made.get(), place++, other);
      return other != nullptr;
    });
    if (!done) return nullptr;
    if (!changed) return Py_NewRef(value);
    if (PyTuple_CheckExact(value)) return made.release();
    if (!is_namedtuple(value)) return Py_NewRef(value);
    return PyObject_CallMethod(reinterpret_cast<PyObject*>(Py_TYPE(value)), "_make", "(O)",
                               made.get());
  }
  if (PyList_CheckExact(value)) {
    const Parts items(value, unique);
    Owned made(items ? PyList_New(items.size()) : nullptr);
    if (!made) return nullptr;
    Py_ssize_t place = 0;
    const bool done = items.each([&](PyObject*, PyObject* part, bool ours) {
      PyObject* other = detached(part, ours, depth + 1, counters, bytes);
      PyList_SET_ITEM(made.get(), place++, other);
      return other != nullptr;
    });
    return done ? made.release() : nullptr;
  }
  if (PyDict_CheckExact(value) || (!PyDict_Check(value) && is_plain_dataclass(value))) {
    const bool object = !PyDict_CheckExact(value);
    const Parts fields = object ? Parts::of_fields(value, unique) : Parts(value, unique);
    Owned made(fields ? PyDict_New() : nullptr);
    if (!made) return nullptr;
    const bool done = fields.each([&](PyObject* key, PyObject* part, bool ours) {
      Owned other(detached(part, ours, depth + 1, counters, bytes));
      return other && PyDict_SetItem(made.get(), key, other.get()) == 0;
    });
    if (!done) return nullptr;
    if (!object) return made.release();
    PyObject* make = helper("penstock.base.interop", "make_dataclass");
    if (make == nullptr) return nullptr;
    return PyObject_CallFunctionObjArgs(make, reinterpret_cast<PyObject*>(Py_TYPE(value)),
                                        made.get(), nullptr);
  }
  if (!is_plain_value(value)) return detached_container(value, depth, counters, bytes);
  return Py_NewRef(value);
}

}  // namespace

PyObject* detach(PyObject* value, WorkerCounters& counters, uint64_t& payload_bytes) {
  Owned held(value);
  return detached(value, only_ours(value), 0, counters, payload_bytes);
}

}  // namespace penstock::python
