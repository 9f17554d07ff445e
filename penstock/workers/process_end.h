#pragma once

#include <cstdint>

#include "penstock/base/os.h"

namespace penstock {

inline constexpr int64_t kKillNs = 2'000'000'000;  // that a process may take to die of SIGKILL

// Uses a poller of its own, because another poller may hold this descriptor, too.
inline bool ended_within(int pidfd, int64_t timeout_ns) {
  os::Poller ended;
  ended.add(pidfd, 0);
  uint64_t tag;
  return ended.wait(timeout_ns, {&tag, 1}) != 0;
}

}  // namespace penstock
