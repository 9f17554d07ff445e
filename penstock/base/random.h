#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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

namespace penstock {

// The purpose of a derived key, so that the keys of two uses of one (seed, epoch) are independent.
enum class KeyUse : uint32_t {
  kSamples = 0,
  kOrder = 1,
  kReplacement = 2,
  kBlocks = 3,
  kWindow = 4,
  kTail = 5,
  kBuffer = 6,
  kSample = 7,
  kInner = 8,
  kSplit = 9,
};

// 64 bits that look independent for every (seed, epoch, use): one Philox block.
constexpr uint64_t derive_key(uint64_t seed, uint64_t epoch, KeyUse use) {
  philox::Block words =
      philox::block({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                     static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)},
                    {static_cast<uint32_t>(use), 0x70656E73});
  return words[0] | uint64_t{words[1]} << 32;
}

// The address of a stream of random numbers. `index`: of a sample; `operation`: a number that is
// unique to each random operation of a plan.
struct RandomKey {
  uint64_t seed = 0, epoch = 0, index = 0;
  uint32_t operation = 0;
};

// The numbers at one address, in order. Equal for equal addresses, on every machine, in every
// thread and process; repeats after 2^34 words. Construction costs one Philox block. A value: not
// synchronised, copies advance independently.
class RandomStream {
 public:
  explicit RandomStream(const RandomKey& key) {
    uint64_t derived = derive_key(key.seed, key.epoch, KeyUse::kSamples);
    key_ = {static_cast<uint32_t>(derived), static_cast<uint32_t>(derived >> 32)};
    counter_ = {0, key.operation, static_cast<uint32_t>(key.index),
                static_cast<uint32_t>(key.index >> 32)};
  }

  uint32_t next_u32() {
    if (used_ == 4) {
      words_ = philox::block(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return words_[used_++];
  }

  uint64_t next_u64() {
    uint64_t low = next_u32();
    return low | uint64_t{next_u32()} << 32;
  }

  // Uniform in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

  // Uniform in [0, n). REQUIRED: n > 0.
  // Lemire, "Fast random integer generation in an interval", ACM TOMACS 2019.
  uint64_t below(uint64_t n) {
    unsigned __int128 product = static_cast<unsigned __int128>(next_u64()) * n;
    if (static_cast<uint64_t>(product) < n) {
      uint64_t unfair = -n % n;
      while (static_cast<uint64_t>(product) < unfair) {
        product = static_cast<unsigned __int128>(next_u64()) * n;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

  // The same words as from next_u32(), faster for many.
  void fill(std::span<uint32_t> out);

 private:
  philox::Key key_;
  philox::Counter counter_;
  philox::Block words_{};
  uint32_t used_ = 4;
};

inline void RandomStream::fill(std::span<uint32_t> out) {
  while (!out.empty() && used_ < 4) {
    out.front() = next_u32();
    out = out.subspan(1);
  }
  size_t blocks = out.size() / 4;
  philox::fill(out.data(), 4 * blocks, key_, counter_);
  counter_[0] += static_cast<uint32_t>(blocks);
  for (uint32_t& word : out.subspan(4 * blocks)) word = next_u32();
}

}  // namespace penstock
