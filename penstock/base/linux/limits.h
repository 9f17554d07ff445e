#pragma once

#include <cstdint>
#include <limits>
#include <string>

// What containers allow this process, read from cgroup v1 and v2 alike. Internal to base/linux/.
namespace penstock::os {

inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

struct CgroupLimits {
  uint64_t memory_limit = kUnlimited;     // bytes
  uint64_t memory_headroom = kUnlimited;  // bytes left at the tightest level
  double cores = std::numeric_limits<double>::infinity();
};

// The tightest limits on the way from this process's groups up to the root. Reads
// <root>/proc/self/{cgroup,mountinfo} and the mount points named there, below `root` ("" is the
// machine itself; tests have their own). Never throws for what is missing or odd: it does not
// limit. Throws std::bad_alloc.
CgroupLimits read_cgroups(const std::string& root);

}  // namespace penstock::os
