#include "penstock/pipeline/stages/stage_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "ops.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"

namespace penstock {
namespace {

// A clock set by the test, which counts how often it is read.
uint64_t g_now = 0, g_reads = 0;
uint64_t made_up_now() {
  ++g_reads;
  return g_now;
}

struct StageClockTest : ::testing::Test {
  StageClockTest() {
    g_now = 1'000'000;
    g_reads = 0;
    clock.count_into(counters);
  }
  uint64_t ns(uint32_t stage) const { return counters[stage].ns.get(); }

  StageCounters counters{};
  StageClock clock{made_up_now};
  StageClock::Kind kind;
};

TEST_F(StageClockTest, a_stage_has_its_own_time_without_that_of_its_inputs) {
  {
    StageClock::Piece piece(clock, kind, 2);
    g_now += 100;
    {
      StageClock::Within map(clock, 1);
      g_now += 30'000;
      {
        StageClock::Within source(clock, 0);
        g_now += 5'000;
      }
      g_now += 40'000;
    }
    g_now += 900;
  }
  EXPECT_EQ(ns(0), 5'000u);
  EXPECT_EQ(ns(1), 70'000u);
  EXPECT_EQ(ns(2), 1'000u);
}

TEST_F(StageClockTest, what_was_thrown_through_stages_is_still_theirs) {
  try {
    StageClock::Piece piece(clock, kind, 1);
    StageClock::Within source(clock, 0);
    g_now += 7'000;
    throw 1;
  } catch (int) {
  }
  {
    StageClock::Piece piece(clock, kind, 1);
    g_now += 4'000;
  }
  EXPECT_EQ(ns(0), 7'000u);
  EXPECT_EQ(ns(1), 4'000u);
}

TEST_F(StageClockTest, of_quick_pieces_one_in_some_is_timed_and_stands_for_the_others) {
  constexpr uint32_t kPieces = 17 * StageClock::kOneIn;
  for (uint32_t i = 0; i < kPieces; ++i) {
    StageClock::Piece piece(clock, kind, 1);
    StageClock::Within source(clock, 0);
    clock.count(0, 64);
    g_now += 100;
  }
  EXPECT_EQ(counters[0].rows.get(), 64u * kPieces);
  EXPECT_NEAR(static_cast<double>(ns(0)), 100.0 * kPieces, 100.0 * StageClock::kOneIn);
  EXPECT_LE(g_reads, 4u * (kPieces / StageClock::kOneIn + 1));
}

TEST_F(StageClockTest,
       pieces_that_take_long_are_all_timed_and_those_that_come_after_quick_ones_soon) {
  for (uint32_t i = 0; i < 100; ++i) {
    StageClock::Piece piece(clock, kind, 0);
    g_now += 100;
  }
  const uint64_t before = ns(0);
  for (uint32_t i = 0; i < 1'000; ++i) {
    StageClock::Piece piece(clock, kind, 0);
    g_now += 1'000'000;
  }
  EXPECT_NEAR(static_cast<double>(ns(0) - before), 1e9, 1e6 * StageClock::kOneIn);
}

TEST_F(StageClockTest, kinds_of_pieces_do_not_disturb_one_another) {
  StageClock::Kind slow;
  for (uint32_t i = 0; i < 340; ++i) {
    {
      StageClock::Piece piece(clock, kind, 0);
      g_now += 100;
    }
    StageClock::Piece piece(clock, slow, 1);
    g_now += 50'000;
  }
  EXPECT_EQ(ns(1), 340u * 50'000);
  EXPECT_NEAR(static_cast<double>(ns(0)), 34'000, 100.0 * StageClock::kOneIn);
}

TEST_F(StageClockTest, a_part_with_work_for_many_pieces_is_timed_whichever_of_them_it_comes_with) {
  constexpr uint32_t kPieces = 1'000, kEach = 64;
  uint64_t parts = 0;
  for (uint32_t i = 0; i < kPieces; ++i) {
    StageClock::Piece piece(clock, kind, 1);
    StageClock::Within filter(clock, 0);
    g_now += 100;
    if (i % kEach == 0) {
      StageClock::Part part(&clock);
      g_now += 4'000'000;
      ++parts;
    }
  }
  // Exact, except for the 100 ns of each piece, which are estimated from the timed pieces.
  EXPECT_NEAR(static_cast<double>(ns(0) - parts * 4'000'000), 100.0 * kPieces,
              100.0 * StageClock::kOneIn);
  EXPECT_EQ(ns(1), 0u);
}

TEST_F(StageClockTest, a_part_makes_the_pieces_around_it_no_slower) {
  for (uint32_t i = 0; i < 20 * StageClock::kOneIn; ++i) {
    StageClock::Piece piece(clock, kind, 0);
    StageClock::Part part(&clock);
    g_now += 1'000'000;
  }
  EXPECT_EQ(ns(0), 20'000'000u * StageClock::kOneIn);
  g_reads = 0;
  for (uint32_t i = 0; i < 20 * StageClock::kOneIn; ++i) {
    StageClock::Piece piece(clock, kind, 0);
    StageClock::Within same(clock, 0);
    g_now += 100;
  }
  EXPECT_LE(g_reads, 21u * 4);
}

TEST_F(StageClockTest, quick_parts_of_a_kind_are_timed_one_in_some) {
  constexpr uint32_t kPieces = 17 * StageClock::kOneIn;
  StageClock::Kind pulls;
  for (uint32_t i = 0; i < kPieces; ++i) {
    StageClock::Piece piece(clock, kind, 2);
    StageClock::Part part(&clock, &pulls);
    StageClock::Within source(clock, 0);
    g_now += 100;
  }
  EXPECT_NEAR(static_cast<double>(ns(0)), 100.0 * kPieces, 100.0 * StageClock::kOneIn);
  EXPECT_LE(g_reads, 8u * (kPieces / StageClock::kOneIn + 1));
}

TEST_F(StageClockTest, a_part_is_the_stages_at_work_and_parts_in_it_are_timed_for_themselves) {
  StageClock::Kind outer, inner;
  for (uint32_t i = 0; i < 200; ++i) {
    StageClock::Piece piece(clock, kind, 3);
    StageClock::Within filter(clock, 2);
    StageClock::Part pull(&clock, &outer);
    StageClock::Within source(clock, 1);
    g_now += 10;
    if (i % 64 != 0) continue;
    StageClock::Part read(&clock, &inner);
    {
      StageClock::Within file(clock, 0);
      g_now += 300'000;
    }
    g_now += 50'000;
  }
  EXPECT_EQ(ns(0), 4u * 300'000);
  EXPECT_NEAR(static_cast<double>(ns(1)), 4 * 50'000 + 200 * 10, 10.0 * StageClock::kOneIn);
  EXPECT_EQ(ns(2), 0u);
  EXPECT_EQ(ns(3), 0u);
}

TEST_F(StageClockTest, outside_of_pieces_and_without_a_clock_a_part_counts_nothing) {
  {
    StageClock::Piece piece(clock, kind, 0);
    g_now += 5'000;
  }
  {
    StageClock::Part part(&clock);
    StageClock::Part nobodys(nullptr);
    g_now += 70'000;
  }
  EXPECT_EQ(ns(0), 5'000u);
}

TEST_F(StageClockTest, stages_beyond_the_last_place_are_summed_up_there) {
  std::vector<std::string> titles;
  for (uint32_t i = 0; i < kStages + 5; ++i) {
    titles.push_back("stage " + std::to_string(i));
    clock.count(i, 1);
  }
  auto stages = stages_of(figures_of(counters), titles);
  ASSERT_EQ(stages.size(), kStages);
  EXPECT_EQ(stages.front().name, "stage 0");
  EXPECT_EQ(stages.back().name, "stage 31 and all after it");
  EXPECT_EQ(stages.back().rows, 6u);
}

// ---- a Dataset's chain

const StageSnapshot* find(const std::vector<StageSnapshot>& stages, const std::string& name) {
  auto found = std::find_if(stages.begin(), stages.end(),
                            [&](const StageSnapshot& stage) { return stage.name == name; });
  return found == stages.end() ? nullptr : &*found;
}

// Takes at least this long, by the measuring clock.
Example busily(const Example& in, uint64_t ns) {
  for (const uint64_t end = now_ns() + ns; now_ns() < end;) {
  }
  return in;
}

// The times of a stream's stages, compared with the times of the code that they call.
struct StreamTime : ::testing::Test {
  static constexpr uint64_t kRows = 300, kSlowNs = 300'000;

  // Takes some time, and records how much.
  void busily_once() {
    const uint64_t begin = now_ns();
    while (now_ns() < begin + kSlowNs) {
    }
    spent += now_ns() - begin;
  }
  auto yes() {
    return [this](const Example&, SampleContext&) {
      busily_once();
      return true;
    };
  }
  auto same() {
    return [this](const Example& in, SampleContext&) {
      busily_once();
      return in;
    };
  }
  // The stage `name` has all of the recorded time, and not a multiple.
  void expect_counted(const Dataset& stream, const std::string& name) {
    spent = 0;
    Loader feed = stream.batch(8).build({.workers = 0});
    for (auto& batch : feed.epoch()) (void)batch;
    const auto stages = feed.stats().stream_stages;
    const StageSnapshot* stage = find(stages, name);
    ASSERT_NE(stage, nullptr) << name;
    EXPECT_GE(stage->ns, spent);
    EXPECT_LE(stage->ns, 4 * spent)
        << name;  // a timed piece, which counts for 17, may have been interrupted
    EXPECT_GE(spent, kRows * kSlowNs);
  }

  uint64_t spent = 0;
};

TEST_F(StreamTime, of_user_code_is_counted_whole_whatever_stage_calls_it) {
  const Dataset range = Dataset::range(0, kRows);
  const auto plain = [](const Example&, SampleContext&) { return true; };
  expect_counted(range.filter(yes(), "slow"), "filter(slow)");
  expect_counted(range.take_while(yes(), "slow"), "take_while(slow)");
  expect_counted(range.unique(same(), "slow"), "unique(slow)");
  expect_counted(range.map(same(), "slow").filter(plain, "plain"), "map(slow)");
  expect_counted(
      range.filter(plain, "plain").shuffle({.seed = 1, .buffer = 50}).filter(yes(), "slow"),
      "filter(slow)");
}

TEST_F(StreamTime, of_a_generator_that_is_slow_now_and_then_is_counted_whole) {
  auto numbers = [this](uint64_t) {
    return [this, n = int64_t{0}]() mutable -> std::optional<Example> {
      if (n == 16 * static_cast<int64_t>(kRows)) return std::nullopt;
      if (n % 16 == 15) busily_once();
      Tensor number = Tensor::make(DType::kInt64, {});
      number.as_span<int64_t>()[0] = n++;
      return Example{{"n", number}};
    };
  };
  const auto plain = [](const Example&, SampleContext&) { return true; };
  expect_counted(Dataset::generator(numbers, "slow").filter(plain, "plain"), "generator(slow)");
}

TEST_F(StreamTime, of_plans_that_are_opened_from_elements_is_counted_whole) {
  auto open = [this](const Example&) {
    busily_once();
    return Dataset::range(0, 5);
  };
  expect_counted(Dataset::range(0, kRows).flat_map(open, "slow"), "flat_map(slow)");
  auto mapped = [this](const Example&) { return Dataset::range(0, 100).map(same(), "inside"); };
  expect_counted(Dataset::range(0, 3).flat_map(mapped, "maps"), "flat_map(maps)");
}

class StagesOf : public ::testing::TestWithParam<uint32_t> {};

TEST_P(StagesOf, a_chain_are_counted_row_by_row_and_the_slow_one_is_named) {
  constexpr uint64_t kRows = 300, kSlowNs = 200'000;
  auto slow = [](const Example& in, SampleContext&) { return busily(in, kSlowNs); };
  auto plain = [](const Example& in, SampleContext&) { return in; };
  Loader feed = Dataset::range(0, kRows)
                    .shuffle({.seed = 3})
                    .map(plain, "plain")
                    .map(slow, "slow")
                    .batch(32)
                    .build({.workers = GetParam()});
  for (auto& batch : feed.epoch()) (void)batch;
  const auto stages = feed.stats().stages;
  for (const char* name : {"range(0, 300)", "shuffle(seed=3)", "map(plain)", "map(slow)"}) {
    const StageSnapshot* stage = find(stages, name);
    ASSERT_NE(stage, nullptr) << name;
    EXPECT_GE(stage->rows, kRows) << name;  // workers may be ahead, in the next epoch
    EXPECT_LE(stage->rows, 3 * kRows) << name;
  }
  uint64_t all = 0;
  for (const StageSnapshot& stage : stages) all += stage.ns;
  const StageSnapshot* slowest = find(stages, "map(slow)");
  EXPECT_GE(slowest->ns, kRows * kSlowNs);
  EXPECT_GT(static_cast<double>(slowest->ns), 0.5 * static_cast<double>(all));
  const Snapshot snapshot = feed.snapshot();
  EXPECT_EQ(snapshot.stages.size(), stages.size());
  EXPECT_TRUE(snapshot.stream_stages.empty());
}

TEST_P(StagesOf, a_stream_are_its_threads_and_those_behind_it_the_workers) {
  constexpr int64_t kRows = 2'000;
  auto even = [](const Example& in, SampleContext&) {
    return *reinterpret_cast<const int64_t*>(in.begin()->second.data()) % 2 == 0;
  };
  auto plain = [](const Example& in, SampleContext&) { return in; };
  Loader feed = Dataset::range(0, kRows)
                    .filter(even)
                    .map(plain, "behind")
                    .batch(10)
                    .build({.workers = GetParam()});
  for (auto& batch : feed.epoch()) (void)batch;
  const LoaderStats stats = feed.stats();
  const StageSnapshot* source = find(stats.stream_stages, "range(0, 2000)");
  ASSERT_NE(source, nullptr);
  EXPECT_GE(source->rows, 2'000u);
  EXPECT_EQ(find(stats.stages, "range(0, 2000)"), nullptr);
  const StageSnapshot* behind = find(stats.stages, "map(behind)");
  ASSERT_NE(behind, nullptr);
  EXPECT_GE(behind->rows, 1'000u);
  EXPECT_EQ(find(stats.stream_stages, "map(behind)"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Workers, StagesOf, ::testing::Values(0, 2));

}  // namespace
}  // namespace penstock
