#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Philox 4x32-10: counter-based random numbers, which have an address instead of a sequence.
// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Not for
// cryptography. Pure functions: any thread.
namespace penstock::philox {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;
using Block = std::array<uint32_t, 4>;

inline constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
inline constexpr int kRounds = 10;

// The four words at one address.
constexpr Block block(Counter counter, Key key) {
  for (int round = 0; round < kRounds; ++round) {
    uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

// The first `n` words of the blocks at counter, counter + 1, ...; only counter[0] is incremented,
// and it wraps: out[4 * j + w] = block({counter[0] + j, counter[1], counter[2], counter[3]},
// key)[w].
void fill(uint32_t* out, size_t n, Key key, Counter counter);

}  // namespace penstock::philox
