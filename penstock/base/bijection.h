#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock {

// A keyed permutation of 0 ... length-1 that is computed and not stored: a global shuffle of any
// length in O(1) memory and time. Equal (length, key) give equal permutations on every machine;
// different keys give ones that look independent. Not for cryptography.
//
// Beyond kTableLength the algorithm is an alternating Feistel network over rows x columns, columns
// being the power of two near the square root and rows just enough of them to hold `length`:
// a round adds a hash of one coordinate to the other, which can be undone whatever the hash is.
// The few results >= length (fewer than one in sqrt(length)) are sent through again until they are
// not ("cycle walking"). Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002;
// for shuffling: Mitchell, Stokes, Frank and Holmes, "Bandwidth-optimal random shuffling for GPUs",
// 2021, whose network over powers of two would throw away up to half of the results.
// At smaller lengths a network with few bits shows; there a table is shuffled (Fisher and Yates),
// so that all orders are equally likely.
//
// Immutable: any thread may call anything. About 340 bytes; copy it freely.
class Bijection {
 public:
  static constexpr uint64_t kMaximalLength = uint64_t{1} << 62;
  static constexpr uint64_t kTableLength = 256;
  static constexpr int kRounds = 12;

  // Error kInvalidArgument if length > kMaximalLength. Takes well under a microsecond.
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
  std::array<uint8_t, kTableLength> table_;  // in use up to kTableLength only
};

}  // namespace penstock
