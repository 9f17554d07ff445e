// Restrictions of a process: limits of its memory, and a forked child.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "penstock/memory/allocator.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/memory/regions.h"

namespace penstock {
namespace {

using testing::holds_in_child;
using testing::kMiB;
using testing::region_of;

TEST(Allocator, a_limit_on_file_size_is_a_nullptr) {
  EXPECT_TRUE(holds_in_child([] {
    rlimit limit{8 * kMiB, 8 * kMiB};
    setrlimit(RLIMIT_FSIZE, &limit);
    Allocator allocator(region_of(256 * kMiB));
    void* fits = allocator.allocate(4 * kMiB);
    void* exact = allocator.allocate(8 * kMiB - Region::kFirstBlock - 4 * kMiB);
    return fits != nullptr && exact != nullptr && allocator.allocate(kMiB) == nullptr;
  }));
}

#ifndef PENSTOCK_SANITIZED
TEST(Allocator, a_limit_on_address_space_is_a_nullptr) {
  EXPECT_TRUE(holds_in_child([] {
    rlimit limit{400 * kMiB, 400 * kMiB};
    setrlimit(RLIMIT_AS, &limit);
    auto region = Region::create(Region::Kind::kPrivate);
    Allocator allocator(region);
    size_t got = 0;
    for (int i = 0; i < 1000; ++i) {
      if (void* block = allocator.allocate(kMiB)) {
        std::memset(block, 1, kMiB);
        got += kMiB;
      }
    }
    return got + 2 * kMiB >= region->reserve() && got < region->reserve();
  }));
}
#endif

TEST(Allocator, a_forked_childs_copy_does_nothing) {
  auto region = region_of(64 * kMiB);
  Allocator allocator(region);
  auto* block = static_cast<int*>(allocator.allocate(4096));
  *block = 11;
  EXPECT_TRUE(holds_in_child([&] {
    bool reads = *block == 11 && allocator.bytes_of(block) == 4096;
    *block = 12;
    allocator.release(block);
    return reads && allocator.allocate(100) == nullptr && allocator.share(block) == std::nullopt &&
           allocator.resize(block, 10) == nullptr;
  }));
  EXPECT_EQ(*block, 11);
  EXPECT_EQ(allocator.stats().live_blocks, 1u);
  allocator.release(block);
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

}  // namespace
}  // namespace penstock
