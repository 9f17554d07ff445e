// The elements that a stream holds of its inputs are counted, few, and within the budget.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "numbers.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/element/scratch.h"
#include "penstock/pipeline/engine/stream_reader.h"
#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(StreamMemory, counts_what_scratch_has) {
  StreamMemory memory(100 * kMiB);
  {
    Scratch scratch;
    scratch.take(1000);
    scratch.count_in(&memory);
    EXPECT_EQ(memory.bytes(), scratch.bytes());
    for (int i = 0; i < 5; ++i) scratch.take(kMiB);
    EXPECT_GE(memory.bytes(), 5 * kMiB);
    EXPECT_EQ(memory.bytes(), scratch.bytes());
    scratch.empty();
    EXPECT_EQ(memory.bytes(), scratch.bytes());
    EXPECT_GE(memory.bytes(), 5 * kMiB);
    scratch.free_all();
    EXPECT_EQ(memory.bytes(), 0u);
    scratch.take(kMiB);
  }
  EXPECT_EQ(memory.bytes(), 0u);
}

TEST(StreamMemory, scratch_does_not_keep_what_one_large_chunk_took) {
  StreamMemory memory(100 * kMiB);
  Scratch scratch;
  scratch.count_in(&memory);
  scratch.take(50 * kMiB);
  for (int i = 0; i < 100; ++i) {
    scratch.empty();
    scratch.take(kMiB);
  }
  EXPECT_LE(memory.bytes(), 2 * kMiB);
}

TEST(StreamMemory, counts_what_chunks_keep_as_long_as_one_does) {
  StreamMemory memory(100 * kMiB);
  Scratch scratch;
  scratch.count_in(&memory);
  Chunk chunk(scratch);
  {
    Chunk other(scratch);
    other.reset(nullptr, 1);
    other.keep(std::make_shared<int>(1), 5000);
    other.keep(std::make_shared<int>(2));
    EXPECT_EQ(memory.bytes(), 5000u);
    chunk.reset(nullptr, 1);
    chunk.keep_owners_of(other);
    EXPECT_EQ(memory.bytes(), 5000u);
    EXPECT_EQ(chunk.kept_bytes(), 5000u);
  }
  EXPECT_EQ(memory.bytes(), 5000u);
  chunk.reset(nullptr, 1);
  EXPECT_EQ(memory.bytes(), 0u);
}

TEST(StreamMemory, many_inputs_pull_less_each) {
  StreamMemory memory(32 * kMiB), any(UINT64_MAX);
  std::vector<std::unique_ptr<StreamMemory::Input>> inputs;
  for (int i = 0; i < 64; ++i) {
    inputs.push_back(std::make_unique<StreamMemory::Input>(&memory));
    inputs.push_back(std::make_unique<StreamMemory::Input>(&any));
  }
  EXPECT_EQ(memory.chunk_bytes(), kMiB / 16);
  EXPECT_EQ(any.chunk_bytes(), kMiB);
  inputs.resize(4);
  EXPECT_EQ(memory.chunk_bytes(), kMiB);
}

TEST(StreamMemory, an_input_that_was_not_read_yet_counts_as_one_element_in_the_budget) {
  ByteBudget budget(100 * kMiB);
  ByteBudget::Holder holder(budget, nullptr);
  StreamMemory memory(100 * kMiB, &holder);
  StreamMemory::Input one(&memory);
  {
    StreamMemory::Input other(&memory);
    EXPECT_EQ(budget.used(), 0u) << "the size is unknown";
    memory.saw_element(1000);
    memory.saw_element(500);
    EXPECT_EQ(budget.used(), 2000u);
    one.read();
    one.read();
    EXPECT_EQ(budget.used(), 1000u);
  }
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(memory.bytes(), 0u);
}

TEST(StreamMemory, its_bytes_are_in_the_budget_and_the_peak_is_kept) {
  ByteBudget budget(100 * kMiB);
  ByteBudget::Holder holder(budget, nullptr);
  StreamMemory memory(100 * kMiB, &holder);
  {
    Scratch scratch;
    scratch.count_in(&memory);
    scratch.take(kMiB);
    EXPECT_GE(budget.used(), kMiB);
    EXPECT_EQ(budget.used(), memory.bytes());
  }
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_GE(memory.take_peak(), kMiB);
  EXPECT_EQ(memory.take_peak(), 0u);
}

// ---- stream readers

constexpr int64_t kEach = 12;

Dataset large_of(int64_t first, uint64_t bytes) {
  return Dataset::range(first, first + kEach).map([bytes](const Example& element, SampleContext&) {
    Tensor values = Tensor::make(DType::kInt64, {static_cast<int64_t>(bytes / 8)});
    std::ranges::fill(values.as_span<int64_t>(), test::number_of(element));
    return Example{{"", values}};
  });
}

std::vector<Dataset> many(size_t inputs, uint64_t bytes) {
  std::vector<Dataset> all;
  for (size_t i = 0; i < inputs; ++i) all.push_back(large_of(static_cast<int64_t>(i) * 100, bytes));
  return all;
}

struct Pass {
  std::vector<int64_t> numbers;  // the first number of each element
  std::vector<StreamReader::Place> places;
  uint64_t most = 0, most_used = 0;  // bytes of the stages, and of the budget
};

// In one thread.
Pass pass_of(const Dataset& dataset, uint64_t max_bytes,
             std::optional<StreamReader::Place> from = std::nullopt) {
  auto plan = std::make_shared<const Plan>(*dataset.node());
  Allocator arena(Region::create(Region::Kind::kPrivate));
  StreamReader::Options options;
  ByteBudget budget(max_bytes);
  StreamReader reader(plan, options, arena, budget, [] {});
  reader.start(0, from.value_or(StreamReader::Place()));
  Pass pass;
  while (std::optional<StreamReader::Made> made = reader.take()) {
    pass.most = std::max(pass.most, reader.memory().bytes());
    pass.most_used = std::max(pass.most_used, budget.used());
    EXPECT_FALSE(made->failure);
    if (made->end) break;
    std::byte* memory = arena.region()->base() + made->offset;
    const StreamChunk stream_chunk = StreamChunk::read(memory);
    for (uint64_t row = 0; row < made->rows; ++row) {
      int64_t number;
      std::memcpy(&number, stream_chunk.block.row(row)[0].second.data(), sizeof(number));
      pass.numbers.push_back(number);
    }
    StreamChunk::release(arena, made->offset);
    pass.places.push_back(made->after);
  }
  return pass;
}

class ManyInputs : public ::testing::TestWithParam<const char*> {
 protected:
  Dataset of(uint64_t bytes) const {
    const std::string how = GetParam();
    if (how == "sample_from") return Dataset::sample_from(many(16, bytes), {.seed = 3}).batch(4);
    if (how == "interleave") {
      std::vector<Dataset> streams;
      for (const Dataset& input : many(16, bytes)) {
        streams.push_back(input.filter([](const Example&, SampleContext&) { return true; }));
      }
      return Dataset::interleave(streams, 16).batch(4);
    }
    auto some = [bytes](const Example& element) {
      return large_of(test::number_of(element) * 100, bytes);
    };
    return Dataset::range(0, 16).interleave(some, {.cycle = 16}).batch(4);
  }
};
INSTANTIATE_TEST_SUITE_P(, ManyInputs, ::testing::Values("sample_from", "interleave", "function"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(ManyInputs, have_no_more_than_an_eighth_of_the_budget_and_one_element_each) {
  for (const uint64_t bytes : {kMiB, kMiB / 8}) {
    for (const uint64_t total : {kMiB, 8 * kMiB, 64 * kMiB, 256 * kMiB}) {
      const Pass pass = pass_of(of(bytes), total);
      EXPECT_EQ(pass.numbers.size(), size_t{16} * kEach);
      // In addition to the inputs there are copies of a stream chunk's elements. A chunk may have
      // one element more, and scratch has at least 64 KiB.
      const uint64_t stream_chunk = 4 * bytes;
      const uint64_t least = 2 * 16 * (bytes + 80 * 1024);  // an interleave's filters have inputs
      EXPECT_LE(pass.most, std::max(total / 8 + 2 * bytes, least) + 2 * stream_chunk)
          << bytes << " of " << total;
      // The elements and one stream chunk are counted, with its header.
      EXPECT_GE(pass.most_used, pass.most);
      EXPECT_LE(pass.most_used,
                std::max({total / 8 + 2 * bytes, total / 2, least}) + 5 * (stream_chunk + 4096));
    }
  }
}

TEST_P(ManyInputs, give_the_same_with_any_share_and_go_on_from_each_other_s_places) {
  const Dataset dataset = of(kMiB / 16);
  const Pass all = pass_of(dataset, UINT64_MAX);
  const Pass little = pass_of(dataset, kMiB);
  ASSERT_EQ(all.numbers.size(), size_t{16} * kEach);
  EXPECT_EQ(all.numbers, little.numbers);
  EXPECT_LT(little.most, all.most);
  for (size_t i = 0; i < all.places.size(); i += 11) {
    const std::vector<int64_t> rest(all.numbers.begin() + static_cast<int64_t>(4 * (i + 1)),
                                    all.numbers.end());
    EXPECT_EQ(pass_of(dataset, kMiB, all.places[i]).numbers, rest) << i;
    EXPECT_EQ(pass_of(dataset, UINT64_MAX, little.places[i]).numbers, rest) << i;
  }
}

// The inputs of a stage that were not read yet count as one element each, which may be more than
// the stream reader's minimum and what others leave.
TEST(StreamMemory, inputs_that_were_not_read_yet_do_not_hold_up_the_chunk_that_a_ticket_waits_for) {
  std::vector<double> weights(16, 0.001);
  weights[0] = 1;
  const Dataset dataset =
      Dataset::sample_from(many(16, kMiB / 8), {.weights = weights, .seed = 3}).batch(1);
  Allocator arena(Region::create(Region::Kind::kPrivate));
  StreamReader::Options options;
  options.threaded = true;
  ByteBudget budget(kMiB);
  ByteBudget::Holder others(budget, nullptr);
  std::mutex mutex;
  std::condition_variable there;
  StreamReader reader(std::make_shared<const Plan>(*dataset.node()), options, arena, budget, [&] {
    const std::lock_guard lock(mutex);
    there.notify_one();
  });
  reader.start(0, StreamReader::Place());
  std::thread thread([&] { reader.run(); });
  uint64_t rows = 0;
  for (bool over = false; !over;) {
    std::optional<StreamReader::Made> made;
    {
      std::unique_lock lock(mutex);
      if (!there.wait_for(lock, std::chrono::seconds(20), [&] { return reader.ready(); })) break;
    }
    made = reader.take();
    if (!made) continue;
    over = made->end;
    rows += made->rows;
    if (made->offset != 0) StreamChunk::release(arena, made->offset);
    if (rows == 1) others.add(kMiB);  // as tickets in flight: they are never given back
  }
  reader.close();
  thread.join();
  EXPECT_EQ(rows, size_t{16} * kEach) << "the stream reader waits for bytes that never come";
}

TEST(StreamMemory, small_elements_are_pulled_as_ever) {
  const Pass pass = pass_of(Dataset::sample_from(many(16, 64), {.seed = 3}).batch(4), 64 * kMiB);
  EXPECT_EQ(pass.numbers.size(), size_t{16} * kEach);
  EXPECT_LE(pass.most_used, 8 * kMiB);
}

// Intermediate results of small elements are in memory, too.
TEST(StreamMemory, small_elements_made_of_large_ones_are_pulled_a_few_at_a_time) {
  auto first = [](const Example& element, SampleContext&) {
    Tensor number = Tensor::make(DType::kInt64, {});
    number.as_span<int64_t>()[0] = test::number_of(element);
    return Example{{"", number}};
  };
  Dataset dataset = large_of(0, kMiB).map(first).filter(test::odd).batch(4);
  const Pass pass = pass_of(dataset, 32 * kMiB);
  EXPECT_EQ(pass.numbers.size(), size_t{kEach} / 2);
  EXPECT_LE(pass.most, 5 * kMiB);
}

// ---- loaders

// For elements that the stream makes itself. The heap may keep the memory of functions' results.
TEST(StreamMemory, a_loader_takes_no_more_than_its_budget) {
  constexpr uint64_t kBudget = 32 * kMiB, kRows = 14;
#ifdef PENSTOCK_SANITIZED
  constexpr uint64_t kInputs = 8;  // under sanitizers, only order and count are checked
#else
  constexpr uint64_t kInputs = 48;
#endif
  Tensor small = Tensor::make(DType::kUint8, {kRows, kMiB / 4});
  std::memset(small.data(), 1, small.nbytes());
  const auto large = [&](const Example&) {
    return Dataset::arrays({{"", small}}).map(cast(DType::kFloat32));
  };
  const Dataset dataset = Dataset::range(0, kInputs).interleave(large, {.cycle = kInputs}).batch(4);
  for (const uint32_t workers : {0u, 2u}) {
    const uint64_t before = os::process_resident_bytes();
    uint64_t most = before;
    Loader feed = dataset.build({.workers = workers, .max_bytes = kBudget});
    uint64_t batches = 0;
    for (auto& batch : feed.epoch()) {
      (void)batch;
      if (++batches < 20) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      most = std::max(most, os::process_resident_bytes());
    }
    feed.close();
    EXPECT_EQ(batches, kInputs * kRows / 4);
#ifndef PENSTOCK_SANITIZED
    // Plus the delivered batch, and 12 MiB for everything else.
    EXPECT_LE(most - before, kBudget + 4 * kMiB + 12 * kMiB) << workers;
#endif
  }
}

}  // namespace
}  // namespace penstock
