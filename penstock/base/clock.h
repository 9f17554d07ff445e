#pragma once

#include <chrono>
#include <cstdint>

namespace penstock {

// Nanoseconds of the machine's monotonic clock. All processes of a machine read the same clock, so
// times written into shared memory by one may be compared with another's. Any thread.
inline uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace penstock
