#pragma once

#include <cstdint>
#include <span>

#include "penstock/base/philox.h"

namespace penstock {

// What a derived key is for, so that two uses of one (seed, epoch) have nothing in common.
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
};

// 64 bits that look independent for every (seed, epoch, use): one Philox block.
constexpr uint64_t derive_key(uint64_t seed, uint64_t epoch, KeyUse use) {
  philox::Block words =
      philox::block({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                     static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)},
                    {static_cast<uint32_t>(use), 0x70656E73});
  return words[0] | uint64_t{words[1]} << 32;
}

// The address of a stream of random numbers: whose they are (a sample's index) and what for (a
// number that each random operation of a plan has to itself).
struct RandomKey {
  uint64_t seed = 0, epoch = 0, index = 0;
  uint32_t operation = 0;
};

// The numbers at one address, in order. Equal for equal addresses, on every machine, in every
// thread and process; 2^34 words long, then it repeats. Costs one Philox block to make; a value
// like any other: not synchronised, copies go on independently.
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

  // In [0, 1), every multiple of 2^-53 equally likely.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

  // In [0, n), every one equally likely. REQUIRED: n > 0.
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

  // The same words that next_u32 would give, faster when there are many.
  void fill(std::span<uint32_t> out);

 private:
  philox::Key key_;
  philox::Counter counter_;
  philox::Block words_{};
  uint32_t used_ = 4;
};

}  // namespace penstock
