#include "penstock/io/record_index.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace penstock {
namespace {

using Place = RecordIndex::Place;

// An index of places of these lengths, and the places themselves.
struct Made {
  RecordIndex index;
  std::vector<Place> places;
};
Made make(uint64_t count, uint64_t begin, const std::function<uint64_t(uint64_t)>& length,
          const std::function<bool(uint64_t)>& damaged) {
  RecordIndex::Builder builder;
  Made made;
  for (uint64_t i = 0; i < count; ++i) {
    builder.add(begin, damaged(i));
    made.places.push_back({begin, length(i), damaged(i)});
    begin += length(i);
  }
  made.index = builder.finish(begin);
  return made;
}

void expect_equal(const Made& made) {
  ASSERT_EQ(made.index.size(), made.places.size());
  for (size_t i = 0; i < made.places.size(); ++i) ASSERT_EQ(made.index.at(i), made.places[i]) << i;
}

bool never(uint64_t) { return false; }

TEST(RecordIndex, gives_back_every_place) {
  for (uint64_t count : {0, 1, 63, 64, 65, 128, 1000}) {
    expect_equal(make(
        count, 5, [](uint64_t i) { return 1 + i * i % 100'000; },
        [](uint64_t i) { return i % 7 == 3; }));
  }
}

TEST(RecordIndex, of_equal_records_takes_no_memory) {
  for (uint64_t count : {0, 1, 1000}) {
    RecordIndex index = RecordIndex::equal(100, 7, count);
    ASSERT_EQ(index.size(), count);
    EXPECT_EQ(index.file_bytes(), 100 + 7 * count);
    EXPECT_EQ(index.memory_bytes(), 0u);
    for (uint64_t i = 0; i < count; ++i) {
      index.prefetch(i);
      ASSERT_EQ(index.at(i), (Place{100 + 7 * i, 7, false}));
    }
  }
  RecordIndex large = RecordIndex::equal(1, uint64_t{1} << 50, 1000);
  EXPECT_EQ(large.at(999).offset, 999 * (uint64_t{1} << 50) + 1);
}

TEST(RecordIndex, of_an_empty_file_is_empty) {
  RecordIndex index = RecordIndex::Builder().finish(0);
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(index.file_bytes(), 0u);
  EXPECT_TRUE(index.damaged().empty());
}

TEST(RecordIndex, knows_damaged_places) {
  Made made = make(
      200, 0, [](uint64_t) { return 10; }, [](uint64_t i) { return i % 90 == 5; });
  EXPECT_EQ(std::vector<uint64_t>(made.index.damaged().begin(), made.index.damaged().end()),
            (std::vector<uint64_t>{5, 95, 185}));
}

TEST(RecordIndex, has_room_for_records_of_many_gigabytes) {
  expect_equal(make(
      300, 0, [](uint64_t i) { return i % 100 == 30 ? uint64_t{7} << 32 : 1000 + i; },
      [](uint64_t i) { return i == 77; }));
  expect_equal(make(
      130, 0, [](uint64_t) { return uint64_t{1} << 40; }, never));
  expect_equal(make(
      64, 0, [](uint64_t i) { return i == 62 ? uint64_t{1} << 33 : 1; }, never));
}

TEST(RecordIndex, takes_little_more_than_four_bytes_a_record) {
  Made made = make(
      100'000, 0, [](uint64_t) { return 596; }, never);
  EXPECT_LE(static_cast<double>(made.index.memory_bytes()), 4.13 * 100'000);
}

TEST(RecordIndex, a_builder_begins_anew_after_finish) {
  RecordIndex::Builder builder;
  builder.add(0);
  builder.add(10);
  EXPECT_EQ(builder.finish(20).size(), 2u);
  builder.add(3);
  RecordIndex index = builder.finish(4);
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.at(0), (Place{3, 1, false}));
}

}  // namespace
}  // namespace penstock
