#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <string>

#include "penstock/base/error.h"

namespace penstock::python {

// The bytes of an object, held as long as this exists. REQUIRED: construction and destruction with
// the GIL held. bytes() may be read without it.
class Buffer {
 public:
  // Error kInvalidArgument: the object has no contiguous buffer. `what` names it in the user's
  // terms.
  Buffer(nanobind::handle object, const char* what, const char* operation = "tfrecord") {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) == 0) return;
    PyErr_Clear();
    throw Error(Code::kInvalidArgument, operation,
                std::string(what) + " is a " + Py_TYPE(object.ptr())->tp_name + "; give bytes");
  }
  Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace penstock::python
