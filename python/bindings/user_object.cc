#include "user_object.h"

#include <nanobind/nanobind.h>

#include "module.h"
#include "penstock/base/error.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {

Owned UserObject::take() const {
  std::lock_guard lock(mutex_);
  if (object_ == nullptr) throw Error(Code::kClosed, "Dataset", "its functions were collected");
  return Owned::borrow(object_);
}

void UserObject::pin() {
  std::lock_guard lock(mutex_);
  if (object_ != nullptr && pinned_ == nullptr) pinned_ = share(object_);
}

void UserObject::forget() {
  std::lock_guard lock(mutex_);
  if (pinned_ == nullptr) object_ = nullptr;
}

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<UserObjectOwner>(self)->object());
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<UserObjectOwner>(self)->clear();
  return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {0, nullptr}};

}  // namespace

void bind_user_object(nb::module_& m) {
  nb::class_<UserObjectOwner>(
      m, "UserObjectOwner", nb::type_slots(slots),
      "The owner of a function or object that a Dataset's stage calls. Internal.")
      .def("__init__", [](UserObjectOwner* self,
                          nb::object object) { new (self) UserObjectOwner(object.ptr()); })
      .def("pin", &UserObjectOwner::pin);
}

}  // namespace penstock::python
