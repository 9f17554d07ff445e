#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "penstock/base/os.h"

namespace penstock::os {
namespace {

std::vector<unsigned> flat(const std::vector<std::vector<unsigned>>& groups) {
  std::vector<unsigned> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  std::ranges::sort(all);
  return all;
}

TEST(Cores, groups_have_each_core_once_and_about_as_many) {
  const std::vector<unsigned> all = flat(core_groups(1));
  ASSERT_FALSE(all.empty());
  for (size_t groups = 1; groups <= all.size(); ++groups) {
    const auto made = core_groups(groups);
    ASSERT_EQ(made.size(), groups);
    EXPECT_EQ(flat(made), all);
    for (const auto& group : made) {
      EXPECT_GE(group.size(), all.size() / groups);
      EXPECT_LE(group.size(), all.size() / groups + 1);
    }
  }
  const auto many = core_groups(all.size() + 1);
  for (std::vector<unsigned> group : many) {
    std::ranges::sort(group);
    EXPECT_EQ(group, all);
  }
}

TEST(Cores, a_thread_stays_where_it_is_told_to_and_no_other_does) {
  const std::vector<unsigned> all = flat(core_groups(1));
  std::thread([&] {
    pin_to_cores({all.back()});
    EXPECT_EQ(flat(core_groups(1)), std::vector{all.back()});
    EXPECT_EQ(usable_cores(), 1u);
    pin_to_cores({});  // changes nothing
    EXPECT_EQ(flat(core_groups(1)), std::vector{all.back()});
  }).join();
  EXPECT_EQ(flat(core_groups(1)), all);
}

}  // namespace
}  // namespace penstock::os
