#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "penstock/base/os.h"

namespace penstock::os {
namespace {

constexpr unsigned kMost = 1 << 16;  // cores: more than any kernel knows

struct CoreSet {
  explicit CoreSet(unsigned room) : set(CPU_ALLOC(room)), bytes(CPU_ALLOC_SIZE(room)) {
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
  const CoreSet may(kMost);
  if (may.set == nullptr || sched_getaffinity(0, may.bytes, may.set) != 0) return cores;
  for (unsigned core = 0; core < kMost; ++core) {
    if (CPU_ISSET_S(core, may.bytes, may.set)) cores.push_back(core);
  }
  return cores;
}

// The first core that shares its largest cache: the same for all that do. Itself if unknown.
unsigned first_beside(unsigned core) {
  const std::string caches = "/sys/devices/system/cpu/cpu" + std::to_string(core) + "/cache/index";
  unsigned first = core;
  int highest = 0;
  for (int index = 0;; ++index) {
    std::ifstream level_file(caches + std::to_string(index) + "/level"),
        shared_file(caches + std::to_string(index) + "/shared_cpu_list");
    int level;
    unsigned beside;
    if (!(level_file >> level) || !(shared_file >> beside)) return first;
    if (level > highest) highest = level, first = beside;
  }
}

}  // namespace

std::vector<std::vector<unsigned>> near_cores(size_t groups) {
  std::vector<unsigned> cores = cores_of_this_thread();
  std::map<unsigned, unsigned> beside;
  for (const unsigned core : cores) beside[core] = first_beside(core);
  std::ranges::stable_sort(cores, {}, [&](unsigned core) { return beside[core]; });
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

void stay_on(const std::vector<unsigned>& cores) {
  const CoreSet only(kMost);
  if (only.set == nullptr || cores.empty()) return;
  for (const unsigned core : cores) CPU_SET_S(core, only.bytes, only.set);
  (void)sched_setaffinity(0, only.bytes, only.set);
}

}  // namespace penstock::os
