#include "penstock/base/linux/limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "penstock/base/os.h"

namespace penstock::os {
namespace {

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  if (file >> value) return value;  // "max" is not a number: no limit
  return std::nullopt;
}

// The number after `key` in a file of lines "key number".
uint64_t read_keyed(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  uint64_t value;
  while (file >> name >> value) {
    if (name == key) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

bool has_word(const std::string& comma_separated, std::string_view word) {
  std::istringstream words(comma_separated);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

// Subtracts inactive file pages from the usage: the kernel drops these before it kills a process.
void take_memory(CgroupLimits& limits, const std::string& folder, const char* limit_file,
                 const char* usage_file, const char* cache_key) {
  std::optional<uint64_t> limit = read_number(folder + limit_file);
  if (!limit || *limit >= (uint64_t{1} << 60)) return;  // v1 spells "none" as a huge number
  limits.memory_limit = std::min(limits.memory_limit, *limit);
  uint64_t used = read_number(folder + usage_file).value_or(0);
  used -= std::min(used, read_keyed(folder + "/memory.stat", cache_key));
  limits.memory_headroom = std::min(limits.memory_headroom, *limit - std::min(*limit, used));
}

void take_quota(CgroupLimits& limits, double quota, double period) {
  if (quota > 0 && period > 0) limits.cores = std::min(limits.cores, quota / period);
}

void take_v2(CgroupLimits& limits, const std::string& folder) {
  take_memory(limits, folder, "/memory.max", "/memory.current", "inactive_file");
  std::ifstream file(folder + "/cpu.max");
  double quota, period;
  if (file >> quota >> period) take_quota(limits, quota, period);
}

void take_v1_memory(CgroupLimits& limits, const std::string& folder) {
  take_memory(limits, folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
              "total_inactive_file");
}

void take_v1_cpu(CgroupLimits& limits, const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
      period_file(folder + "/cpu.cfs_period_us");
  double quota, period;
  if (quota_file >> quota && period_file >> period) take_quota(limits, quota, period);
}

// Calls `take` for the folder of group `path` under a mount, and for every parent's.
template <typename Take>
void walk_up(CgroupLimits& limits, const std::string& mount, std::string path, Take take) {
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    take(limits, mount + path);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

struct Mount {
  std::string root, point, type, options;
};

// proc(5): "id parent major:minor root point options [optional fields] - type source options"
std::vector<Mount> cgroup_mounts(const std::string& path) {
  std::vector<Mount> mounts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    Mount mount;
    std::string skip;
    front >> skip >> skip >> skip >> mount.root >> mount.point;
    back >> mount.type >> skip >> mount.options;
    if (mount.type == "cgroup" || mount.type == "cgroup2") mounts.push_back(std::move(mount));
  }
  return mounts;
}

uint64_t meminfo(std::string_view key) { return read_keyed("/proc/meminfo", key) * 1024; }

unsigned cores_of_affinity() {
  for (int processors = 1024; processors <= 1 << 20;
       processors *= 2) {  // EINVAL: the kernel's mask is wider
    cpu_set_t* set = CPU_ALLOC(processors);
    if (set == nullptr) break;
    size_t bytes = CPU_ALLOC_SIZE(processors);
    int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return static_cast<unsigned>(count);
  }
  return static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// The result of `read`, or `otherwise` if it ran out of memory.
template <typename T, typename Read>
T read_or(T otherwise, Read read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    return otherwise;
  }
}

}  // namespace

CgroupLimits read_cgroups(const std::string& root) {
  CgroupLimits limits;
  std::vector<Mount> mounts = cgroup_mounts(root + "/proc/self/mountinfo");
  std::ifstream groups(root + "/proc/self/cgroup");
  // "id:controllers:path", with no controllers for v2
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    for (const Mount& mount : mounts) {
      // A container often sees only its own group, mounted as the root.
      std::string below = path;
      if (mount.root != "/" && below.starts_with(mount.root)) below.erase(0, mount.root.size());
      std::string point = root + mount.point;
      if (mount.type == "cgroup2") {
        if (controllers.empty()) walk_up(limits, point, below, take_v2);
        continue;
      }
      if (has_word(controllers, "memory") && has_word(mount.options, "memory")) {
        walk_up(limits, point, below, take_v1_memory);
      }
      if (has_word(controllers, "cpu") && has_word(mount.options, "cpu")) {
        walk_up(limits, point, below, take_v1_cpu);
      }
    }
  }
  return limits;
}

uint64_t memory_limit() {
  return read_or(kUnlimited, [] {
    uint64_t machine = meminfo("MemTotal:");
    return std::min(machine != 0 ? machine : kUnlimited, read_cgroups("").memory_limit);
  });
}

// 0 if there is not even memory to read the limits.
uint64_t memory_headroom() {
  return read_or(uint64_t{0}, [] {
    uint64_t machine = meminfo("MemAvailable:");
    return std::min(machine != 0 ? machine : kUnlimited, read_cgroups("").memory_headroom);
  });
}

uint64_t process_resident_bytes() {
  return read_or(uint64_t{0}, [] {
    std::ifstream file("/proc/self/statm");
    uint64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * page_size();
  });
}

unsigned usable_cores() {
  unsigned cores = cores_of_affinity();
  return read_or(cores, [cores] {
    double quota = std::ceil(read_cgroups("").cores);
    return quota < cores ? std::max(1u, static_cast<unsigned>(quota)) : cores;
  });
}

}  // namespace penstock::os
