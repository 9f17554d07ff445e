#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace penstock {

// Counts durations in buckets whose limits differ by an eighth or less; exact below 8 ns. A value:
// not synchronised.
class LatencyHistogram {
 public:
  static constexpr size_t kBuckets = 8 * 62;

  void add(uint64_t ns) {
    ++counts_[bucket_of(ns)];
    ++count_;
    sum_ns_ += ns;
    longest_ns_ = std::max(longest_ns_, ns);
  }

  uint64_t count() const { return count_; }
  uint64_t count(size_t bucket) const { return counts_[bucket]; }
  uint64_t longest_ns() const { return longest_ns_; }
  double mean_ns() const {
    return count_ == 0 ? 0 : static_cast<double>(sum_ns_) / static_cast<double>(count_);
  }

  // The largest duration of a bucket.
  static uint64_t limit_ns(size_t bucket) {
    if (bucket < 8) return bucket;
    const int shift = static_cast<int>(bucket / 8) - 1;
    return ((uint64_t{8} + bucket % 8 + 1) << shift) - 1;
  }

  // At least this share of all durations is not longer; 0 if there are none. 0 < share <= 1.
  uint64_t quantile_ns(double share) const {
    const double wanted = share * static_cast<double>(count_);
    uint64_t below = 0;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      below += counts_[bucket];
      if (below > 0 && static_cast<double>(below) >= wanted) {
        return std::min(limit_ns(bucket), longest_ns_);
      }
    }
    return longest_ns_;
  }

 private:
  static size_t bucket_of(uint64_t ns) {
    if (ns < 8) return ns;
    const int shift = std::bit_width(ns) - 4;
    return (static_cast<size_t>(shift) + 1) * 8 + ((ns >> shift) & 7);
  }

  std::array<uint64_t, kBuckets> counts_{};
  uint64_t count_ = 0, sum_ns_ = 0, longest_ns_ = 0;
};

}  // namespace penstock
