#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock {

// A keyed permutation of 0 ... length-1, computed instead of stored: a global shuffle of any length
// in O(1) memory and time per element. Equal (length, key) give equal permutations on every
// machine; different keys give permutations that look independent. Not for cryptography.
//
// Above kTableLength the algorithm is an alternating Feistel network over rows x columns. The
// number of columns is the power of two near the square root; there are just enough rows for
// `length`. A round adds a hash of one coordinate to the other, which is invertible for any hash.
// The few results >= length (fewer than one in sqrt(length)) go through the network again until
// they are smaller ("cycle walking"). Black and Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002; for shuffling: Mitchell, Stokes, Frank and Holmes, "Bandwidth-optimal random
// shuffling for GPUs", 2021, whose network over powers of two would throw away up to half of the
// results.
//
// At small lengths a network with few bits is visibly not random. There a table is shuffled (Fisher
// and Yates), so that all orders are equally likely.
//
// Immutable: any thread may call anything. About 340 bytes; copy it freely.
class Bijection {
 public:
  static constexpr uint64_t kMaxLength = uint64_t{1} << 62;
  static constexpr uint64_t kTableLength = 256;
  static constexpr int kRounds = 12;

  // Error kInvalidArgument if length > kMaxLength. Takes well under a microsecond.
  Bijection(uint64_t length, uint64_t key);

  uint64_t length() const { return length_; }

  // REQUIRED: position < length().
  uint64_t operator()(uint64_t position) const;

  // out[i] = (*this)(first + i) for i < count, several times faster.
  // REQUIRED: first + count <= length().
  void map(uint64_t first, size_t count, uint64_t* out) const;

 private:
  uint64_t length_;
  uint32_t rows_ = 0;
  uint32_t column_bits_ = 0;
  std::array<uint32_t, kRounds> keys_{};
  std::array<uint8_t, kTableLength> table_;  // used for lengths up to kTableLength
};

}  // namespace penstock
