#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "penstock/base/error.h"

namespace penstock {

// Reads values from the front of untrusted bytes, and never beyond their end. A value; one thread.
class ByteReader {
 public:
  // `code`, `operation`: of the Error if too few bytes are left.
  ByteReader(std::span<const std::byte> bytes, Code code, const char* operation)
      : left_(bytes), code_(code), operation_(operation) {}

  size_t left() const { return left_.size(); }

  std::span<const std::byte> take(size_t n) {
    if (n > left_.size())
      throw Error(code_, operation_, "the data is shorter than its header says");
    auto taken = left_.first(n);
    left_ = left_.subspan(n);
    return taken;
  }
  template <class T>
  T get() {
    T value;
    get(&value, 1);
    return value;
  }
  // REQUIRED: count * sizeof(T) does not overflow.
  template <class T>
  void get(T* values, size_t count) {
    auto from = take(count * sizeof(T));
    if (!from.empty()) std::memcpy(values, from.data(), from.size());
  }
  std::string text(size_t n) {
    auto from = take(n);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

 private:
  std::span<const std::byte> left_;
  Code code_;
  const char* operation_;
};

}  // namespace penstock
