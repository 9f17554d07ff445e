#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "numpy_api.h"
#include "penstock/memory/tensor.h"

namespace penstock::python {

// Replaces NumPy's type number if a pickled dtype follows.
inline constexpr uint8_t kPickledDtype = 255;

// Reads the structure of a sample, written by Sample. The bytes come from a worker of this Loader,
// but are validated like untrusted ones.
class SpecReader {
 public:
  explicit SpecReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  template <class T>
  T get() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> get_bytes() {
    uint32_t n = get<uint32_t>();
    if (n > bytes_.size()) {
      ok_ = false;
      return {};
    }
    auto taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }
  Owned load_class() {
    auto pickle = get_bytes();
    PyObject* load = ok_ ? helper("penstock.base.interop", "load_class") : nullptr;
    Owned bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(pickle.data()),
                                          static_cast<Py_ssize_t>(pickle.size())));
    return Owned(load == nullptr || !bytes ? nullptr : PyObject_CallOneArg(load, bytes.get()));
  }
  Owned dtype() {
    uint8_t type = get<uint8_t>();
    if (type == kPickledDtype) return load_class();
    return Owned(ok_ ? reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)) : nullptr);
  }
  Shape shape() {
    Shape shape;
    for (int n = get<uint8_t>(); n > 0 && ok_; --n) shape.push_back(get<int64_t>());
    return shape;
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

// "array of float32 with shape (3, 4)", "(int64, array ...)": for the message about ragged samples.
std::string describe(std::span<const std::byte> spec);

}  // namespace penstock::python
