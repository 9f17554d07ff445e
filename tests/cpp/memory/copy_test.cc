#include "penstock/memory/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "penstock/memory/gather.h"

namespace penstock {
namespace {

std::vector<uint8_t> noise(size_t bytes) {
  std::mt19937_64 random(bytes);
  std::vector<uint8_t> data(bytes);
  for (auto& byte : data) byte = static_cast<uint8_t>(random());
  return data;
}

TEST(CopyStream, copies_every_byte_and_none_beside_at_any_alignment) {
  constexpr size_t kMargin = 128;
  std::vector<uint8_t> source = noise((size_t{1} << 20) + 2 * kMargin);
  for (size_t bytes : {0ul, 1ul, 63ul, 4096ul, (256ul << 10) - 1, 256ul << 10, (256ul << 10) + 1,
                       (256ul << 10) + 16384 + 77, (1ul << 20) - 5}) {
    for (size_t from : {0ul, 1ul, 17ul, 64ul}) {
      for (size_t to : {0ul, 1ul, 16ul, 63ul}) {
        std::vector<uint8_t> target(bytes + 2 * kMargin, 0xee);
        copy_stream(target.data() + kMargin - to, source.data() + from, bytes);
        ASSERT_EQ(std::memcmp(target.data() + kMargin - to, source.data() + from, bytes), 0);
        ASSERT_EQ(target[kMargin - to - 1], 0xee);
        ASSERT_EQ(target[kMargin - to + bytes], 0xee);
      }
    }
  }
}

TEST(CopyReversed, turns_each_number_around_in_place_too) {
  for (size_t number : {1, 2, 4, 8}) {
    const std::vector<uint8_t> from = noise(48);
    std::vector<uint8_t> to(48), place = from;
    copy_byteswapped(to.data(), from.data(), 40, number);
    copy_byteswapped(place.data(), place.data(), 40, number);
    for (size_t i = 0; i < 40; ++i) {
      ASSERT_EQ(to[i], from[i / number * number + number - 1 - i % number]);
      ASSERT_EQ(place[i], to[i]);
    }
    ASSERT_EQ(to[40], 0);
    ASSERT_EQ(place[40], from[40]);
  }
}

TEST(GatherRows, every_row_is_the_one_its_index_names) {
  std::mt19937_64 random(1);
  for (size_t row_bytes :
       {1ul, 2ul, 3ul, 4ul, 8ul, 12ul, 16ul, 64ul, 100ul, 784ul, 5000ul, 300000ul}) {
    size_t rows = row_bytes > 10000 ? 5 : 50;
    for (size_t stride : {row_bytes, row_bytes + 13}) {
      std::vector<uint8_t> source = noise(rows * stride);
      for (size_t count : {0ul, 1ul, 2ul, 3ul, 40ul, 150ul}) {
        std::vector<uint64_t> indices(count);
        for (auto& index : indices) index = random() % rows;
        std::vector<uint8_t> target(count * row_bytes + 1, 0xee);
        gather_rows(target.data(), source.data(), row_bytes, stride, indices.data(), count);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(target.data() + i * row_bytes, source.data() + indices[i] * stride,
                                row_bytes),
                    0);
        }
        ASSERT_EQ(target.back(), 0xee);

        std::vector<uint8_t> same(count * row_bytes + 1, 0xee);
        size_t asked = 0;
        gather_rows(reinterpret_cast<std::byte*>(same.data()), row_bytes, count, [&](size_t i) {
          EXPECT_LE(i, asked);  // in order, and again
          asked = std::max(asked, i + 1);
          return reinterpret_cast<const std::byte*>(source.data() + indices[i] * stride);
        });
        ASSERT_EQ(same, target);
        ASSERT_EQ(asked, count);
      }
    }
  }
  gather_rows(nullptr, nullptr, 0, 0, nullptr, 10);
}

}  // namespace
}  // namespace penstock
