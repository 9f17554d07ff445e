#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "penstock/base/random.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {
namespace {

using Name = std::shared_ptr<const std::string>;

Name named(const std::string& name) { return std::make_shared<const std::string>(name); }

std::vector<std::byte> written(const Origins& origins) {
  // All bytes are written: none relies on zeroed memory.
  std::vector<std::byte> bytes(origins.bytes(), std::byte{0xa5});
  origins.write(bytes.data());
  return bytes;
}

TEST(Origins, records_that_follow_each_other_take_the_space_of_one) {
  Origins few, many;
  const Name name = named("a.tfrecord");
  for (uint64_t i = 0; i < 2; ++i) few.add({name, 7 + i});
  for (uint64_t i = 0; i < 500; ++i) many.add({name, 7 + i});
  EXPECT_EQ(many.bytes(), few.bytes());
  const auto bytes = written(many);
  EXPECT_EQ(bytes.size() % 8, 0U);
  EXPECT_EQ(Origins::text(bytes, 0), "a.tfrecord, record 7");
  EXPECT_EQ(Origins::text(bytes, 499), "a.tfrecord, record 506");
}

TEST(Origins, each_of_any_order_is_found) {
  const std::vector<Name> names = {named("a"), named("bb.tfrecord"), named("a longer/name"),
                                   nullptr};
  RandomStream draws({5, 0, 0});
  Origins origins;
  for (int round = 0; round < 50; ++round) {
    origins.clear();
    std::vector<Origin> added;
    const auto count = draws.below(40);
    for (uint64_t i = 0; i < count; ++i) {
      added.push_back({names[draws.below(names.size())], draws.below(3)});
      origins.add(added.back());
    }
    const auto bytes = written(origins);
    for (size_t i = 0; i < added.size(); ++i) {
      EXPECT_EQ(Origins::text(bytes, i), added[i].text()) << "element " << i;
    }
  }
}

TEST(Origins, nothing_is_written_where_nobody_knows) {
  Origins origins;
  EXPECT_EQ(origins.bytes(), 0U);
  origins.add({});
  origins.add({});
  EXPECT_EQ(origins.bytes(), 0U);
  EXPECT_EQ(Origins::text(written(origins), 1), "");
  origins.add({named("a"), 3});
  EXPECT_EQ(Origins::text(written(origins), 1), "");
  EXPECT_EQ(Origins::text(written(origins), 2), "a, record 3");
}

}  // namespace
}  // namespace penstock
