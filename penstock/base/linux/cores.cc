#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "penstock/base/os.h"

namespace penstock::os {
namespace {

constexpr unsigned kMaxCores = 1 << 16;  // more than any kernel supports

struct CoreSet {
  explicit CoreSet(unsigned max_cores)
      : set(CPU_ALLOC(max_cores)), bytes(CPU_ALLOC_SIZE(max_cores)) {
    if (set != nullptr) CPU_ZERO_S(bytes, set);
  }
  ~CoreSet() {
    if (set != nullptr) CPU_FREE(set);
  }
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  cpu_set_t* const set;
  const size_t bytes;
};

std::vector<unsigned> cores_of_this_thread() {
  std::vector<unsigned> cores;
  const CoreSet allowed(kMaxCores);
  if (allowed.set == nullptr || sched_getaffinity(0, allowed.bytes, allowed.set) != 0) return cores;
  for (unsigned core = 0; core < kMaxCores; ++core) {
    if (CPU_ISSET_S(core, allowed.bytes, allowed.set)) cores.push_back(core);
  }
  return cores;
}

// The first of the cores that share this core's largest cache; the core itself if unknown.
unsigned first_sharing_cache(unsigned core) {
  const std::string caches = "/sys/devices/system/cpu/cpu" + std::to_string(core) + "/cache/index";
  unsigned first = core;
  int highest = 0;
  for (int index = 0;; ++index) {
    std::ifstream level_file(caches + std::to_string(index) + "/level"),
        shared_file(caches + std::to_string(index) + "/shared_cpu_list");
    int level;
    unsigned cache_of;
    if (!(level_file >> level) || !(shared_file >> cache_of)) return first;
    if (level > highest) highest = level, first = cache_of;
  }
}

}  // namespace

std::vector<std::vector<unsigned>> core_groups(size_t groups) {
  std::vector<unsigned> cores = cores_of_this_thread();
  std::map<unsigned, unsigned> cache_of;
  for (const unsigned core : cores) cache_of[core] = first_sharing_cache(core);
  std::ranges::stable_sort(cores, {}, [&](unsigned core) { return cache_of[core]; });
  std::vector<std::vector<unsigned>> made(groups, cores);
  if (cores.size() < groups) return made;
  for (size_t group = 0; group < groups; ++group) {
    const auto first_of = [&](size_t g) {
      return cores.begin() + static_cast<ptrdiff_t>((g * cores.size() + groups - 1) / groups);
    };
    made[group].assign(first_of(group), first_of(group + 1));
  }
  return made;
}

void pin_to_cores(const std::vector<unsigned>& cores) {
  const CoreSet only(kMaxCores);
  if (only.set == nullptr || cores.empty()) return;
  for (const unsigned core : cores) CPU_SET_S(core, only.bytes, only.set);
  (void)sched_setaffinity(0, only.bytes, only.set);
}

}  // namespace penstock::os
