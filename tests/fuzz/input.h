#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock {

// Reads a fuzzer's bytes from the front. Behind their end are zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  size_t left() const { return left_; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // `Bytes`: a vector of bytes, or a string.
  template <class Bytes = std::vector<std::byte>>
  Bytes take(size_t count) {
    Bytes bytes(count, {});
    const size_t some = std::min(count, left_);
    if (some > 0) std::memcpy(bytes.data(), data_, some);
    data_ += some;
    left_ -= some;
    return bytes;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace penstock
