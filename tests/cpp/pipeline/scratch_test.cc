#include "penstock/pipeline/element/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <set>

namespace penstock {
namespace {

TEST(Scratch, pieces_are_aligned_and_apart) {
  Scratch scratch;
  std::byte* end = nullptr;
  std::set<std::byte*> taken;
  for (size_t bytes : {0, 1, 63, 64, 65, 1000, 70000, 1, 200000, 3}) {
    std::byte* memory = scratch.take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    std::memset(memory, 1, bytes);
    EXPECT_TRUE(taken.insert(memory).second);
    end = memory + bytes;
  }
  EXPECT_NE(end, nullptr);
}

TEST(Scratch, more_than_there_is_throws) {
  Scratch scratch;
  EXPECT_THROW(scratch.take(size_t{1} << 60), std::bad_alloc);
  std::memset(scratch.take(100), 1, 100);
}

TEST(Scratch, emptied_it_allocates_no_more) {
  Scratch scratch;
  auto round = [&] {
    std::byte* first = scratch.take(50000);
    for (int i = 0; i < 20; ++i) scratch.take(30000);
    scratch.empty();
    return first;
  };
  round();
  std::byte* first = round();
  size_t bytes = scratch.bytes();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(round(), first);
  EXPECT_EQ(scratch.bytes(), bytes);
}

TEST(Scratch, what_is_kept_goes_when_it_is_emptied_or_before) {
  Scratch scratch;
  auto first = std::make_unique<Scratch::Kept>(scratch);
  auto second = std::make_unique<Scratch::Kept>(scratch);
  Scratch::Kept third(scratch);
  const auto owner = std::make_shared<int>(1);
  first->add(owner, 10);
  second->add(*first);
  third.add(owner, 5);
  EXPECT_EQ(owner.use_count(), 4);
  EXPECT_EQ(second->bytes(), 10u);
  first.reset();
  EXPECT_EQ(owner.use_count(), 3);
  scratch.empty();
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_EQ(second->bytes() + third.bytes(), 0u);
  second->add(owner, 1);
  second.reset();
  third.add(owner, 1);
  scratch.free_all();
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace penstock
