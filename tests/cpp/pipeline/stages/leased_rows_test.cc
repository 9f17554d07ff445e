// Large elements that workers made for a stream are copied once: into their batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../numbers.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {
namespace {

constexpr int64_t kElements = 60, kNumbers = 8192;  // 64 KiB each

Tensor numbers(int64_t count, int64_t value) {
  Tensor made = Tensor::make(DType::kInt64, {count});
  std::ranges::fill(made.as_span<int64_t>(), value);
  return made;
}

Example large(const Example& element, SampleContext&) {
  const int64_t number = test::number_of(element);
  return Example{{"values", numbers(kNumbers, number)}, {"label", numbers(1, -number)}};
}

// Of different lengths.
Example longer(const Example& element, SampleContext&) {
  const int64_t number = test::number_of(element);
  return Example{{"values", numbers(kNumbers + number, number)}, {"label", numbers(1, -number)}};
}

Example doubled(const Example& element, SampleContext&) {
  const auto values = element.at("values").as_span<const int64_t>();
  const auto count = static_cast<int64_t>(values.size());
  return Example{{"values", numbers(count, 2 * values[0])}, {"label", numbers(1, -2 * values[0])}};
}

bool even(const Example& element, SampleContext&) {
  return element.at("label").as_span<const int64_t>()[0] % 2 == 0;
}

Dataset range() { return Dataset::range(0, kElements); }

// Every value of every column, to compare batches.
std::string text_of(const Example& batch) {
  std::string text;
  for (const auto& [name, column] : batch) {
    text += name;
    for (int64_t axis : column.shape()) text += " " + std::to_string(axis);
    const auto values = column.as_span<const int64_t>();
    int64_t before = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i == 0 || values[i] != before) {
        text += " " + std::to_string(i) + ":" + std::to_string(values[i]);
      }
      before = values[i];
    }
  }
  return text;
}

std::vector<std::string> texts_of(Loader& feed) {
  std::vector<std::string> all;
  for (auto& batch : feed.epoch()) all.push_back(text_of(batch));
  return all;
}

struct Case {
  const char* name;
  Dataset dataset;
  uint64_t copied = 0;  // bytes of a pass on the stream reader's thread
};

std::vector<Case> cases() {
  return {
      {"filter", range().map(large).filter(test::kept).batch(7)},
      {"fewer", range().map(large).filter(even).batch(7)},
      {"elements", range().map(large).filter(test::kept)},
      {"lengths", range().map(longer).filter(test::kept).ragged_batch(7)},
      {"tail", range().map(large).filter(test::kept).map(doubled).batch(7)},
      {"two", range().map(large).filter(test::kept).map(doubled).filter(test::kept).batch(7)},
      {"take", range().map(large).filter(test::kept).take(23).batch(7)},
      {"inputs",
       Dataset::interleave({range().map(large).filter(even), range().map(large).map(doubled)}, 2)
           .batch(7)},
      {"beside small ones",
       Dataset::zip({range().map(large).filter(test::kept), range()}, {"large", "small"}).batch(6),
       2 * kElements * sizeof(int64_t)},
  };
}

class LeasedRowsWorkers : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(, LeasedRowsWorkers, ::testing::Values(1, 3));

TEST_P(LeasedRowsWorkers, large_elements_behind_a_parallel_map_are_copied_into_their_batch_only) {
  for (const auto& [name, dataset, copied] : cases()) {
    SCOPED_TRACE(name);
    Loader alone = dataset.build({.workers = 0}), feed = dataset.build({.workers = GetParam()});
    for (uint64_t pass = 1; pass <= 2; ++pass) {
      ASSERT_EQ(texts_of(feed), texts_of(alone));
      EXPECT_EQ(feed.stats().stream_bytes_copied, pass * copied);
    }
    EXPECT_GT(alone.stats().stream_bytes_copied, 0u) << "without workers there is no parallel map";
  }
}

TEST_P(LeasedRowsWorkers, batches_are_the_same_with_little_memory_and_after_passes_that_were_left) {
  for (const auto& [name, dataset, copied] : cases()) {
    SCOPED_TRACE(name);
    Loader alone = dataset.build({.workers = 0});
    Loader feed = dataset.build({.workers = GetParam(), .max_bytes = 1});
    for (size_t batches : {0, 1, 3}) {
      ASSERT_EQ(texts_of(feed), texts_of(alone));
      for (const auto& batch : feed.epoch()) {
        (void)batch;
        if (batches-- == 0) break;
      }
      for (const auto& batch : alone.epoch()) (void)batch;
    }
    feed.epoch();
  }
}

// ---- stream chunks

// Large elements in blocks of an arena, each of which is released when the next one is made.
class InArena : public Streamed {
 public:
  explicit InArena(Allocator& arena)
      : arena_(arena),
        spec_(std::make_shared<ElementSpec>(
            std::vector<Leaf>{{"", LeafKind::kDense, DType::kInt64, {kNumbers}}})) {}
  SpecRef spec() const override { return spec_; }
  std::optional<uint64_t> length() const override { return kElements; }
  bool python() const override { return false; }
  std::unique_ptr<ElementReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public ElementReader {
   public:
    explicit Reader(const InArena& stage) : stage_(stage) {}
    void begin(uint64_t) override {}
    State save() const override { return {}; }
    void load(uint64_t, const State&) override {}
    uint32_t next(uint32_t, Chunk& out) override {
      Allocator& arena = stage_.arena_;
      void* block = arena.allocate(kNumbers * sizeof(int64_t));
      std::fill_n(static_cast<int64_t*>(block), kNumbers, made_++);
      lease_ = arena.lease(block);
      arena.release(block);
      out.reset(stage_.spec_, 1);
      out.view(0, 0, lease_.data());
      return 1;
    }

   private:
    const InArena& stage_;
    int64_t made_ = 0;
    Lease lease_;
  };

  Allocator& arena_;
  SpecRef spec_;
};

TEST(LeasedRows, a_stream_chunk_keeps_blocks_that_were_released_until_it_is_released_itself) {
  constexpr uint64_t kRows = 9;
  Allocator arena(Region::create(Region::Kind::kPrivate));
  const InArena stage(arena);
  Scratch scratch;
  StreamMemory memory(UINT64_MAX);
  Context context{.scratch = scratch, .memory = &memory};
  auto reader = stage.reader(context);
  uint64_t announced = 0;
  GatherChunk gathered(context, stage, &arena, UINT64_MAX,
                       [&](uint64_t bytes) { announced = bytes; });
  ASSERT_EQ(gathered.gather(*reader, {kRows, kRows}).rows, kRows);
  EXPECT_EQ(announced, kRows * kNumbers * sizeof(int64_t));
  EXPECT_GT(StreamChunk::bytes_of(gathered), announced);
  const uint64_t offset = StreamChunk::put(gathered, 100, arena);
  gathered.drop_space();
  reader.reset();
  arena.collect();
  EXPECT_EQ(arena.stats().live_blocks, kRows + 1) << "the elements and the stream chunk";
  EXPECT_EQ(memory.copied(), 0u);

  const StreamChunk chunk = StreamChunk::read(arena.region()->base() + offset);
  ASSERT_EQ(chunk.rows(), kRows);
  EXPECT_EQ(chunk.rows_from(103), kRows - 3);
  Chunk out(scratch);
  out.reset(nullptr, kRows);
  ASSERT_TRUE(out.settle(chunk.spec()));
  for (uint32_t row = 0; row < kRows; ++row) {
    chunk.view(row, out, row);
    const auto* values = reinterpret_cast<const int64_t*>(out.at(0, row));
    EXPECT_TRUE(std::all_of(values, values + kNumbers, [&](int64_t n) { return n == row; }));
  }
  StreamChunk::release(arena, offset);
  arena.collect();
  EXPECT_EQ(arena.stats().live_blocks, 0u);
}

TEST(LeasedRows, elements_that_no_stream_chunk_took_are_released) {
  Allocator arena(Region::create(Region::Kind::kPrivate));
  const InArena stage(arena);
  Scratch scratch;
  Context context{.scratch = scratch};
  auto reader = stage.reader(context);
  {
    GatherChunk gathered(context, stage, &arena);
    ASSERT_EQ(gathered.gather(*reader, {4, 4}).rows, 4u);
    ASSERT_EQ(gathered.gather(*reader, {4, 4}).rows, 4u);
    reader.reset();
    arena.collect();
    EXPECT_EQ(arena.stats().live_blocks, 4u);
  }
  arena.collect();
  EXPECT_EQ(arena.stats().live_blocks, 0u);
}

}  // namespace
}  // namespace penstock
