#pragma once

#include <cstdint>
#include <limits>
#include <string>

// The limits that containers set for this process, from cgroup v1 and v2. Internal to base/linux/.
namespace penstock::os {

inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

struct CgroupLimits {
  uint64_t memory_limit = kUnlimited;     // bytes
  uint64_t memory_headroom = kUnlimited;  // bytes left at the tightest level
  double cores = std::numeric_limits<double>::infinity();
};

// The tightest limits from this process's groups up to the root. Reads
// <root>/proc/self/{cgroup,mountinfo} and the mount points named there, below `root` ("": the
// machine; tests use their own). Missing or malformed files count as no limit. Throws only
// std::bad_alloc.
CgroupLimits read_cgroups(const std::string& root);

}  // namespace penstock::os
