#include "penstock/memory/region.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "penstock/base/error.h"
#include "penstock/memory/region_layout.h"
#include "tests/cpp/memory/child.h"

namespace penstock {
namespace {

using testing::holds_in_child;

constexpr size_t kUnit = Region::kFirstBlock;

TEST(Region, grows_and_never_moves) {
  for (auto kind : {Region::Kind::kShared, Region::Kind::kPrivate}) {
    auto region = Region::create(kind, 8 * kUnit);
    std::byte* base = region->base();
    EXPECT_EQ(region->committed(), kUnit);
    ASSERT_TRUE(region->extend(4 * kUnit) && region->populate(kUnit, 3 * kUnit));
    std::memset(base + kUnit, 7, 3 * kUnit);
    ASSERT_TRUE(region->extend(8 * kUnit) && region->populate(4 * kUnit, 4 * kUnit));
    EXPECT_EQ(region->base(), base);
    EXPECT_EQ(region->committed(), 8 * kUnit);
    EXPECT_EQ(base[2 * kUnit], std::byte{7});
    EXPECT_EQ(base[5 * kUnit], std::byte{0});
    EXPECT_FALSE(region->extend(9 * kUnit)) << "past the reserve";
    EXPECT_EQ(region->committed(), 8 * kUnit);
    EXPECT_FALSE(region->populate(8 * kUnit, kUnit)) << "past what is committed";
    EXPECT_TRUE(region->contains(base) && region->contains(base + 8 * kUnit - 1));
    EXPECT_FALSE(region->contains(base + 8 * kUnit) || region->contains(base - 1));
  }
}

TEST(Region, reserves_as_much_as_fits_by_default) {
  auto region = Region::create(Region::Kind::kShared);
  EXPECT_GE(region->reserve(), size_t{64} << 20);
  EXPECT_LE(region->backed_bytes(), kUnit) << "reserving costs no memory";
}

TEST(Region, what_one_process_writes_another_reads) {
  auto region = Region::create(Region::Kind::kShared, 64 * kUnit);
  ASSERT_TRUE(region->extend(2 * kUnit) && region->populate(kUnit, kUnit));
  EXPECT_TRUE(holds_in_child([&] {
    auto mine = Region::open(region->fd());
    mine->base()[kUnit] = std::byte{42};
    return mine->committed() == 2 * kUnit && mine->reserve() == region->reserve();
  }));
  EXPECT_EQ(region->base()[kUnit], std::byte{42});
}

TEST(Region, growth_is_seen_by_those_who_opened_it_before) {
  auto region = Region::create(Region::Kind::kShared, 64 * kUnit);
  auto other = Region::open(region->fd());
  ASSERT_TRUE(region->extend(3 * kUnit) && region->populate(2 * kUnit, kUnit));
  region->base()[2 * kUnit + 5] = std::byte{9};
  EXPECT_EQ(other->committed(), 3 * kUnit);
  other->prefault(2 * kUnit, kUnit);
  other->prefault(2 * kUnit + 100, 1);
  other->prefault(0, SIZE_MAX / 2);
  EXPECT_EQ(other->base()[2 * kUnit + 5], std::byte{9});
}

// A process that crashes may write anything into the header of a region that it shares.
TEST(Region, a_damaged_count_of_committed_bytes_reaches_no_page_that_is_not_there) {
  auto region = Region::create(Region::Kind::kShared, 64 * kUnit);
  ASSERT_TRUE(region->extend(2 * kUnit));
  auto other = Region::open(region->fd());
  EXPECT_EQ(other->committed(), 2 * kUnit);
  auto* header = reinterpret_cast<RegionHeader*>(other->base());
  for (uint64_t damage : {uint64_t{0}, uint64_t{63}, 60 * kUnit, UINT64_MAX}) {
    header->committed.store(damage);
    EXPECT_EQ(region->committed(), 2 * kUnit);
    EXPECT_EQ(other->committed(), 2 * kUnit);
    EXPECT_EQ(region->header_at(40 * kUnit), nullptr);
    EXPECT_EQ(other->header_at(40 * kUnit), nullptr);
    EXPECT_NE(region->header_at(kUnit), nullptr) << "its allocator relies on that";
  }
  ASSERT_TRUE(region->extend(3 * kUnit));
  EXPECT_EQ(other->committed(), 3 * kUnit);
}

TEST(Region, pages_given_back_are_memory_given_back) {
  auto region = Region::create(Region::Kind::kShared, 64 * kUnit);
  ASSERT_TRUE(region->extend(33 * kUnit) && region->populate(kUnit, 32 * kUnit));
  EXPECT_GE(region->backed_bytes(), 32 * kUnit);
  region->base()[kUnit] = std::byte{1};
  region->discard(kUnit, 32 * kUnit);
  EXPECT_LE(region->backed_bytes(), kUnit);
  EXPECT_EQ(region->base()[kUnit], std::byte{0});
}

TEST(Region, open_refuses_what_is_no_region) {
  auto refused = [](int fd) {
    try {
      Region::open(fd);
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument || error.code() == Code::kSystem;
    }
    return false;
  };
  EXPECT_TRUE(refused(-1));
  testing::Gate pipe;
  os::Fd empty = os::memory_file("empty");
  EXPECT_TRUE(refused(empty.get()));
  os::resize_file(empty.get(), 2 * kUnit);
  EXPECT_TRUE(refused(empty.get())) << "zeroes";

  auto damaged = [&](auto change) {
    auto region = Region::create(Region::Kind::kShared, 16 * kUnit);
    change(*reinterpret_cast<RegionHeader*>(region->base()));
    return refused(region->fd());
  };
  EXPECT_FALSE(damaged([](RegionHeader&) {}));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.magic ^= 1; }));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.version += 1; }));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.kind = 2; }));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.reserve += 1; }));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.reserve = 0; }));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.committed = UINT64_MAX; }));
  EXPECT_TRUE(damaged([](RegionHeader& h) { h.committed = 8 * kUnit; })) << "beyond the file";
}

TEST(Region, a_forked_child_has_a_copy_of_its_own) {
  for (auto kind : {Region::Kind::kShared, Region::Kind::kPrivate}) {
    auto region = Region::create(kind, 16 * kUnit);
    ASSERT_TRUE(region->extend(2 * kUnit) && region->populate(kUnit, kUnit));
    region->base()[kUnit] = std::byte{5};
    EXPECT_TRUE(holds_in_child([&] {
      bool as_before = region->base()[kUnit] == std::byte{5} && region->inherited();
      region->base()[kUnit] = std::byte{6};
      return as_before && !region->extend(4 * kUnit) && !region->populate(kUnit, kUnit);
    }));
    EXPECT_FALSE(region->inherited());
    EXPECT_EQ(region->base()[kUnit], std::byte{5});
  }
}

TEST(Region, a_limit_on_file_size_is_a_refusal_and_not_a_signal) {
  EXPECT_TRUE(holds_in_child([] {
    rlimit limit{4 * kUnit, 4 * kUnit};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto region = Region::create(Region::Kind::kShared, 64 * kUnit);
    bool fits = region->extend(4 * kUnit) && region->populate(kUnit, 3 * kUnit);
    return fits && !region->extend(5 * kUnit) && region->committed() == 4 * kUnit;
  }));
}

#ifndef PENSTOCK_SANITIZED  // sanitizers need terabytes of address space
TEST(Region, a_limit_on_address_space_makes_the_reserve_smaller) {
  EXPECT_TRUE(holds_in_child([] {
    rlimit limit{size_t{1} << 30, size_t{1} << 30};
    setrlimit(RLIMIT_AS, &limit);
    auto region = Region::create(Region::Kind::kShared);
    return region->reserve() >= size_t{64} << 20 && region->reserve() < size_t{1} << 30 &&
           region->extend(10 * kUnit) && region->populate(kUnit, 9 * kUnit);
  }));
  EXPECT_TRUE(holds_in_child([] {
    rlimit limit{size_t{40} << 20, size_t{40} << 20};
    setrlimit(RLIMIT_AS, &limit);
    try {
      Region::create(Region::Kind::kShared);
    } catch (const Error& error) {
      return error.code() == Code::kOutOfMemory;
    }
    return false;
  }));
}

TEST(Region, a_reader_with_less_address_space_maps_what_is_committed) {
  auto region = Region::create(Region::Kind::kShared, size_t{8} << 30);
  ASSERT_TRUE(region->extend(32 * kUnit) && region->populate(kUnit, kUnit));
  region->base()[kUnit] = std::byte{3};
  int fd = region->fd();
  EXPECT_TRUE(holds_in_child([&] {
    rlimit now{};
    getrlimit(RLIMIT_AS, &now);
    now.rlim_cur = (size_t{8} << 30) + (size_t{512} << 20);  // a little more than the current size
    setrlimit(RLIMIT_AS, &now);
    auto mine = Region::open(fd);
    return mine->reserve() < size_t{8} << 30 && mine->committed() == 32 * kUnit &&
           mine->base()[kUnit] == std::byte{3};
  }));
}
#endif

}  // namespace
}  // namespace penstock
