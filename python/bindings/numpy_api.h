#pragma once

// NumPy's C interface, imported once by module.cc.
#include <Python.h>
#define PY_ARRAY_UNIQUE_SYMBOL penstock_numpy_api
#ifndef PENSTOCK_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <memory>

namespace penstock::python {

// One owned reference; null is allowed.
class Owned {
 public:
  Owned() = default;
  explicit Owned(PyObject* owned) : object_(owned) {}
  static Owned borrow(PyObject* object) {
    Py_XINCREF(object);
    return Owned(object);
  }
  Owned(Owned&& other) noexcept : object_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    PyObject* old = object_;
    object_ = other.release();
    Py_XDECREF(old);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// A capsule that keeps `owner` alive; its destruction uses no other Python object.
PyObject* owner_capsule(std::shared_ptr<void> owner);

// An attribute of one of penstock's Python modules, looked up once; borrowed. nullptr: exception.
PyObject* helper(const char* module, const char* name);

// torch.Tensor if torch was imported, else nullptr; borrowed.
PyObject* torch_tensor_type();

// Takes the exception that is set, with its traceback. Null: none is set.
Owned exception_in_flight();

}  // namespace penstock::python
