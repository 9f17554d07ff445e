#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>

namespace penstock::net {

// 32 bytes that nobody else may see; wiped in the end.
class Key {
 public:
  static constexpr size_t kBytes = 32;
  Key() = default;
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key() { sodium_memzero(bytes_.data(), bytes_.size()); }

  unsigned char* data() { return bytes_.data(); }
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, kBytes> bytes_{};
};

}  // namespace penstock::net
