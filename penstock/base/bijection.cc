#include "penstock/base/bijection.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/random.h"

namespace penstock {
namespace {

constexpr size_t kChunk = 64;  // positions at a time: enough to fill vectors, few enough for L1

struct Network {
  const uint32_t* keys;
  uint32_t rows, column_bits;
};

#define PENSTOCK_INLINE __attribute__((always_inline)) inline

// A hash whose high bits depend on all of x and key. The multipliers are those of xxHash32; any
// odd numbers with well-mixed bits would do.
PENSTOCK_INLINE uint32_t mix(uint32_t x, uint32_t key) {
  x = (x ^ key) * 0x9E3779B1u;
  x ^= x >> 15;
  return x * 0x85EBCA77u;
}

PENSTOCK_INLINE void two_rounds(const Network& network, int round, uint32_t& row,
                                uint32_t& column) {
  uint64_t hash = mix(column, network.keys[round]);
  uint32_t moved = row + static_cast<uint32_t>((hash * network.rows) >> 32);
  // Modulo rows: both summands are below rows <= 2^31, so a difference that wraps is the larger
  // one.
  row = std::min(moved, moved - network.rows);
  column += mix(row, network.keys[round + 1]) >> (32 - network.column_bits);
  column &= (1u << network.column_bits) - 1;
}

PENSTOCK_INLINE uint64_t apply_network(const Network& network, uint64_t position) {
  uint32_t row = static_cast<uint32_t>(position >> network.column_bits);
  uint32_t column = static_cast<uint32_t>(position) & ((1u << network.column_bits) - 1);
  for (int round = 0; round < Bijection::kRounds; round += 2) {
    two_rounds(network, round, row, column);
  }
  return uint64_t{row} << network.column_bits | column;
}

// The same for kChunk positions from `first` on, in loops that compilers vectorise.
PENSTOCK_INLINE void apply_to_chunk(const Network& network, uint64_t first, uint64_t* out) {
  uint32_t row[kChunk], column[kChunk];
  for (size_t i = 0; i < kChunk; ++i) {
    row[i] = static_cast<uint32_t>((first + i) >> network.column_bits);
    column[i] = static_cast<uint32_t>(first + i) & ((1u << network.column_bits) - 1);
  }
  for (int round = 0; round < Bijection::kRounds; round += 2) {
    for (size_t i = 0; i < kChunk; ++i) two_rounds(network, round, row[i], column[i]);
  }
  for (size_t i = 0; i < kChunk; ++i) {
    out[i] = uint64_t{row[i]} << network.column_bits | column[i];
  }
}

using ApplyToChunk = void (*)(const Network&, uint64_t, uint64_t*);

void chunk_plain(const Network& network, uint64_t first, uint64_t* out) {
  apply_to_chunk(network, first, out);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void chunk_avx2(const Network& network, uint64_t first,
                                                uint64_t* out) {
  apply_to_chunk(network, first, out);
}

__attribute__((target("avx2,avx512f,avx512vl,avx512dq,avx512bw"))) void chunk_avx512(
    const Network& network, uint64_t first, uint64_t* out) {
  apply_to_chunk(network, first, out);
}

ApplyToChunk best_chunk() {
  if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    return chunk_avx512;
  }
  return __builtin_cpu_supports("avx2") ? chunk_avx2 : chunk_plain;
}

#else

ApplyToChunk best_chunk() { return chunk_plain; }

#endif

}  // namespace

Bijection::Bijection(uint64_t length, uint64_t key) : length_(length) {
  if (length > kMaxLength) {
    throw Error(Code::kInvalidArgument, "shuffle",
                std::to_string(length) + " elements are more than 2^62");
  }
  philox::Key philox_key{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  // The length is part of the address: a data set that grew by one has a different order.
  philox::Counter counter{0, 0, static_cast<uint32_t>(length), static_cast<uint32_t>(length >> 32)};
  if (length > kTableLength) {
    column_bits_ = static_cast<uint32_t>(std::bit_width(length - 1)) / 2;
    rows_ = static_cast<uint32_t>(((length - 1) >> column_bits_) + 1);
    philox::fill(keys_.data(), keys_.size(), philox_key, counter);
    return;
  }
  std::iota(table_.begin(), table_.end(), uint8_t{0});
  std::array<uint32_t, kTableLength> words;
  philox::fill(words.data(), length, philox_key, counter);
  for (uint64_t last = length; last-- > 1;) {
    // The bias is at most one word in 2^24: far below what any test can detect.
    uint64_t other = (uint64_t{words[last]} * (last + 1)) >> 32;
    std::swap(table_[last], table_[other]);
  }
}

uint64_t Bijection::operator()(uint64_t position) const {
  if (length_ <= kTableLength) return table_[position];
  Network network{keys_.data(), rows_, column_bits_};
  do {
    position = apply_network(network, position);
  } while (position >= length_);
  return position;
}

void Bijection::map(uint64_t first, size_t count, uint64_t* out) const {
  if (length_ <= kTableLength) {
    for (size_t i = 0; i < count; ++i) out[i] = table_[first + i];
    return;
  }
  Network network{keys_.data(), rows_, column_bits_};
  ApplyToChunk apply = best_chunk();
  while (count > 0) {
    size_t now = std::min(count, kChunk);
    if (now == kChunk) {
      apply(network, first, out);
    } else {
      uint64_t chunk[kChunk];  // positions after the last one are computed and ignored
      apply(network, first, chunk);
      std::copy_n(chunk, now, out);
    }
    uint64_t largest = 0;
    for (size_t i = 0; i < now; ++i) largest = std::max(largest, out[i]);
    if (largest >= length_) {
      for (size_t i = 0; i < now; ++i) {
        while (out[i] >= length_) out[i] = apply_network(network, out[i]);
      }
    }
    first += now;
    out += now;
    count -= now;
  }
}

}  // namespace penstock
