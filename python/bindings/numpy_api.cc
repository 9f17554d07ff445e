#include "numpy_api.h"

#include <map>
#include <string>
#include <utility>

namespace penstock::python {

PyObject* owner_capsule(std::shared_ptr<void> owner) {
  auto* held = new std::shared_ptr<void>(std::move(owner));
  PyObject* capsule = PyCapsule_New(held, nullptr, [](PyObject* self) {
    delete static_cast<std::shared_ptr<void>*>(PyCapsule_GetPointer(self, nullptr));
  });
  if (capsule == nullptr) delete held;
  return capsule;
}

PyObject* helper(const char* module, const char* name) {
  // Guarded by the GIL. Never emptied, because the interpreter outlives every use.
  static auto* known = new std::map<std::string, PyObject*>;
  std::string key = std::string(module) + "." + name;
  auto found = known->find(key);
  if (found != known->end()) return found->second;
  Owned imported(PyImport_ImportModule(module));
  if (!imported) return nullptr;
  PyObject* attribute = PyObject_GetAttrString(imported.get(), name);
  if (attribute != nullptr) known->emplace(std::move(key), attribute);
  return attribute;
}

PyObject* torch_tensor_type() {
  static PyObject* type = nullptr;
  if (type != nullptr) return type;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (torch == nullptr) return nullptr;
  type = PyObject_GetAttrString(torch, "Tensor");
  if (type == nullptr) PyErr_Clear();  // torch is still being imported
  return type;
}

Owned exception_in_flight() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return Owned(value);
}

}  // namespace penstock::python
