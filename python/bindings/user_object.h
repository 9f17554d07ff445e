#pragma once

#include <memory>
#include <mutex>

#include "numpy_api.h"

namespace nanobind {
class module_;
}

namespace penstock::python {

// A user's Python object that stages of a Dataset call. The stages refer to it weakly: its only
// owner is a UserObjectOwner, which Python's garbage collector can traverse. So an object with an
// attribute that is a Dataset or Loader of its own methods can be collected. Threads: any.
class UserObject {
 public:
  explicit UserObject(PyObject* object) : object_(object) {}

  // With the GIL held. Error kClosed: the Dataset was collected.
  Owned take() const;
  // Makes the stages owners of the object, too: it lives as long as they do. With the GIL held.
  void pin();
  // Called when the owner is about to release the object.
  void forget();

 private:
  mutable std::mutex mutex_;
  PyObject* object_;
  std::shared_ptr<void> pinned_;
};
using UserObjectRef = std::shared_ptr<const UserObject>;

// The owner, a Python object: it lives as long as the penstock.Dataset whose stage calls the
// object.
class UserObjectOwner {
 public:
  // With the GIL held.
  explicit UserObjectOwner(PyObject* object)
      : owned_(Owned::borrow(object)), shared_(std::make_shared<UserObject>(object)) {}
  UserObjectOwner(const UserObjectOwner&) = delete;
  UserObjectOwner& operator=(const UserObjectOwner&) = delete;
  ~UserObjectOwner() { clear(); }

  UserObjectRef shared() const { return shared_; }
  PyObject* object() const { return owned_.get(); }
  void pin() { shared_->pin(); }
  void clear() {
    shared_->forget();
    owned_ = Owned();
  }

 private:
  Owned owned_;
  std::shared_ptr<UserObject> shared_;
};

void bind_user_object(nanobind::module_& m);

}  // namespace penstock::python
