#include "penstock/pipeline/element/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
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

}  // namespace
}  // namespace penstock
