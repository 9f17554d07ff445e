// Stream chunks of large elements: elements are written to their places directly or copied there,
// with the same result.
#include "penstock/pipeline/stages/stream_chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../numbers.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/engine/stream_reader.h"

namespace penstock {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Two leaves, whose values are the element's number.
Dataset large(int64_t elements, uint64_t (*bytes_of)(int64_t)) {
  return Dataset::range(0, elements).map([bytes_of](const Example& element, SampleContext&) {
    const int64_t number = test::number_of(element);
    Tensor values = Tensor::make(DType::kInt64, {static_cast<int64_t>(bytes_of(number) / 8)});
    std::ranges::fill(values.as_span<int64_t>(), number);
    Tensor label = Tensor::make(DType::kInt64, {});
    label.as_span<int64_t>()[0] = number;
    return Example{{"values", values}, {"label", label}};
  });
}

struct Gone {
  std::vector<int64_t> numbers;
  uint64_t most_bytes = 0;  // held by the stream
  uint64_t most_live = 0, live = 0;
};

Gone through(const Dataset& dataset, std::vector<StreamReader::Place>* places = nullptr,
             std::optional<StreamReader::Place> from = std::nullopt) {
  Gone gone;
  Allocator arena(Region::create(Region::Kind::kPrivate));
  {
    StreamReader::Options options;
    ByteBudget budget(32 * kMiB);
    StreamReader reader(std::make_shared<const Plan>(*dataset.node()), options, arena, budget,
                        [] {});
    reader.start(0, from.value_or(StreamReader::Place()));
    while (std::optional<StreamReader::Made> made = reader.take()) {
      gone.most_bytes = std::max(gone.most_bytes, reader.memory().bytes());
      EXPECT_FALSE(made->failure);
      if (made->end) break;
      if (places != nullptr) places->push_back(made->after);
      std::byte* memory = arena.region()->base() + made->offset;
      EXPECT_GE(arena.bytes_of(memory), made->bytes);
      const StreamChunk stream_chunk = StreamChunk::read(memory);
      EXPECT_EQ(stream_chunk.block.rows(), made->rows);
      for (uint64_t row = 0; row < made->rows; ++row) {
        const Example element = stream_chunk.block.row(row);
        const int64_t number = element.at("label").as_span<const int64_t>()[0];
        const auto values = element.at("values").as_span<const int64_t>();
        EXPECT_TRUE(std::ranges::all_of(values, [&](int64_t v) { return v == number; })) << number;
        gone.numbers.push_back(number);
      }
      StreamChunk::release(arena, made->offset);
    }
  }
  gone.most_live = arena.stats().peak_live_bytes;
  gone.live = arena.stats().live_bytes;
  return gone;
}

bool odd_of(const Example& element, SampleContext&) {
  return element.at("label").as_span<const int64_t>()[0] % 2 != 0;
}

std::vector<int64_t> numbers_of(int64_t first, int64_t end, int64_t step = 1) {
  std::vector<int64_t> numbers;
  for (; first < end; first += step) numbers.push_back(first);
  return numbers;
}

TEST(StreamChunk, large_elements_of_one_size_are_written_where_they_are_to_lie) {
  const Dataset dataset = large(36, [](int64_t) { return kMiB; }).filter(test::kept).batch(8);
  const Gone gone = through(dataset);
  EXPECT_EQ(gone.numbers, numbers_of(0, 36));  // the last chunk has four, copied
  EXPECT_LT(gone.most_live, 13 * kMiB);
  EXPECT_LT(gone.most_bytes, 5 * kMiB);
  EXPECT_EQ(gone.live, 0u);
}

TEST(StreamChunk, elements_that_are_left_out_leave_no_gaps) {
  const Gone gone = through(large(20, [](int64_t) { return kMiB; }).filter(odd_of).batch(4));
  EXPECT_EQ(gone.numbers, numbers_of(1, 20, 2));
  EXPECT_EQ(gone.live, 0u);
}

TEST(StreamChunk, elements_of_another_size_among_them_are_theirs) {
  for (int64_t other = 0; other < 9; ++other) {
    static int64_t which;
    which = other;
    const Dataset some = large(9, [](int64_t n) { return n == which ? kMiB / 2 : kMiB; });
    const Gone gone = through(some.filter(test::kept).ragged_batch(4));
    EXPECT_EQ(gone.numbers, numbers_of(0, 9)) << other;
    EXPECT_EQ(gone.live, 0u);
  }
}

TEST(StreamChunk, one_that_fails_keeps_no_space) {
  const auto at_six = [](int64_t n) -> uint64_t {
    if (n == 6) throw std::runtime_error("six");
    return kMiB;
  };
  Allocator arena(Region::create(Region::Kind::kPrivate));
  StreamReader::Options options;
  ByteBudget budget(32 * kMiB);
  const Dataset dataset = large(12, at_six).filter(test::kept).batch(4);
  StreamReader reader(std::make_shared<const Plan>(*dataset.node()), options, arena, budget, [] {});
  reader.start(0, StreamReader::Place());
  const std::optional<StreamReader::Made> first = reader.take();
  ASSERT_TRUE(first && !first->failure);
  StreamChunk::release(arena, first->offset);
  const std::optional<StreamReader::Made> second = reader.take();
  ASSERT_TRUE(second && second->failure);
  EXPECT_EQ(arena.stats().live_bytes, 0u);
}

TEST(StreamChunk, a_place_amid_one_is_found_again) {
  const Dataset dataset = large(12, [](int64_t) { return kMiB; }).filter(test::kept).batch(4);
  std::vector<StreamReader::Place> places;
  through(dataset, &places);
  ASSERT_EQ(places.size(), 3u);
  StreamReader::Place amid = places[0];
  amid.used = 3;
  const Gone gone = through(dataset, nullptr, amid);
  EXPECT_EQ(gone.numbers, numbers_of(7, 12));
  EXPECT_EQ(gone.live, 0u);
}

}  // namespace
}  // namespace penstock
