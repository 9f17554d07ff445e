// Limits of containers, read from made-up directory trees.
#include "penstock/base/linux/limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/cpp/temporary_folder.h"

namespace penstock::os {
namespace {

namespace fs = std::filesystem;

class Machine {
 public:
  void file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  CgroupLimits limits() const { return read_cgroups(root_); }

 private:
  const penstock::testing::TemporaryFolder folder_;
  const std::string root_ = folder_.path();
};

constexpr char kMountV2[] =
    "25 30 0:23 / /proc rw - proc proc rw\n"
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kMountV1[] =
    "35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

TEST(Limits, a_machine_without_groups_has_none) {
  Machine machine;
  CgroupLimits limits = machine.limits();
  EXPECT_EQ(limits.memory_limit, kUnlimited);
  EXPECT_EQ(limits.memory_headroom, kUnlimited);
  EXPECT_GT(limits.cores, 1e6);
}

TEST(Limits, the_tightest_level_of_v2_counts) {
  Machine machine;
  machine.file("/proc/self/mountinfo", kMountV2);
  machine.file("/proc/self/cgroup", "0::/user.slice/job\n");
  std::string group = "/sys/fs/cgroup/user.slice";
  machine.file(group + "/job/memory.max", "max\n");
  machine.file(group + "/job/memory.current", "100\n");
  machine.file(group + "/memory.max", "1000\n");
  machine.file(group + "/memory.current", "700\n");
  machine.file(group + "/memory.stat", "anon 5\nfile 300\ninactive_file 200\n");
  machine.file(group + "/job/cpu.max", "150000 100000\n");
  machine.file(group + "/cpu.max", "max 100000\n");
  CgroupLimits limits = machine.limits();
  EXPECT_EQ(limits.memory_limit, 1000u);
  EXPECT_EQ(limits.memory_headroom, 500u) << "cache that the kernel would drop is headroom";
  EXPECT_DOUBLE_EQ(limits.cores, 1.5);
}

TEST(Limits, a_group_mounted_as_the_root_of_v1_counts) {
  Machine machine;
  machine.file("/proc/self/mountinfo", kMountV1);
  machine.file("/proc/self/cgroup", "4:memory:/docker/ab\n3:cpu,cpuacct:/work\n0::/\n");
  machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  machine.file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  machine.file("/sys/fs/cgroup/cpu,cpuacct/work/cpu.cfs_quota_us", "400000\n");
  machine.file("/sys/fs/cgroup/cpu,cpuacct/work/cpu.cfs_period_us", "100000\n");
  machine.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  machine.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CgroupLimits limits = machine.limits();
  EXPECT_EQ(limits.memory_limit, 5000u);
  EXPECT_EQ(limits.memory_headroom, 0u) << "over the limit is none, not a wrapped number";
  EXPECT_DOUBLE_EQ(limits.cores, 4.0);
}

TEST(Limits, the_huge_number_that_means_none_in_v1_is_none) {
  Machine machine;
  machine.file("/proc/self/mountinfo", kMountV1);
  machine.file("/proc/self/cgroup", "4:memory:/docker/ab\n");
  machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(machine.limits().memory_limit, kUnlimited);
}

TEST(Limits, nonsense_does_not_limit) {
  Machine machine;
  machine.file("/proc/self/mountinfo", "x\n\n - \n1 2 3\n" + std::string(kMountV2));
  machine.file("/proc/self/cgroup", "::::\nabc\n0::/../..\n0:\n");
  machine.file("/sys/fs/cgroup/memory.max", "many\n");
  machine.file("/sys/fs/cgroup/cpu.max", "0 0\n");
  CgroupLimits limits = machine.limits();
  EXPECT_EQ(limits.memory_limit, kUnlimited);
  EXPECT_GT(limits.cores, 1e6);
}

}  // namespace
}  // namespace penstock::os
