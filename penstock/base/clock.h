#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace penstock {

// Nanoseconds of the machine's monotonic clock. All processes of a machine read the same clock, so
// times written into shared memory by one may be compared with another's. Any thread.
inline uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

inline constexpr double kForEver = std::numeric_limits<double>::infinity();

// A point in time, given as seconds from now. kForEver, or more than a century, never passes.
class Deadline {
 public:
  explicit Deadline(double seconds) {
    constexpr double kCentury = 3.2e9;
    if (seconds < kCentury) {
      at_ns_ = now_ns() + (seconds > 0 ? static_cast<uint64_t>(seconds * 1e9) : 0);
    }
  }

  bool passed() const { return at_ns_ != kNever && now_ns() >= at_ns_; }
  double left_s() const {
    if (at_ns_ == kNever) return kForEver;
    const uint64_t now = now_ns();
    return now >= at_ns_ ? 0 : 1e-9 * static_cast<double>(at_ns_ - now);
  }
  // For poll(): milliseconds, rounded up and at most 1000 seconds; -1: no timeout. The caller
  // checks passed() and polls again.
  int poll_ms() const {
    if (at_ns_ == kNever) return -1;
    const uint64_t now = now_ns();
    if (now >= at_ns_) return 0;
    const uint64_t ms = (at_ns_ - now + 999'999) / 1'000'000;
    return ms > 1'000'000 ? 1'000'000 : static_cast<int>(ms);
  }

  static Deadline earlier(Deadline a, Deadline b) { return a.at_ns_ < b.at_ns_ ? a : b; }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};

  uint64_t at_ns_ = kNever;
};

}  // namespace penstock
