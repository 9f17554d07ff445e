#include "penstock/train/loop.h"

#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock::train {
namespace {

constexpr int64_t kColumnRows = 103;

Example columns(int64_t samples = kColumnRows) {
  Tensor x = Tensor::make(DType::kFloat32, {samples, 2}),
         id = Tensor::make(DType::kInt64, {samples});
  std::iota(x.as_span<float>().begin(), x.as_span<float>().end(), 0.0f);
  std::iota(id.as_span<int64_t>().begin(), id.as_span<int64_t>().end(), 0);
  return {{"x", x}, {"id", id}};
}

Dataset shuffled() { return Dataset::arrays(columns()).shuffle({.seed = 3}); }

using Ids = std::vector<int64_t>;

Ids ids_of(const Example& batch) {
  const auto ids = batch.at("id").as_span<const int64_t>();
  const auto x = batch.at("x").as_span<const float>();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(x[2 * i], 2.0f * static_cast<float>(ids[i]));
  return {ids.begin(), ids.end()};
}

struct Seen {
  std::vector<Ids> steps, said;
  std::vector<size_t> looks;  // number of steps of each look
};

Loop::Look<Ids> into(Seen& seen, bool more = true) {
  return [&seen, more](uint64_t first, std::span<const Ids> said) {
    EXPECT_EQ(first, seen.said.size());
    seen.said.insert(seen.said.end(), said.begin(), said.end());
    seen.looks.push_back(said.size());
    return more;
  };
}

Seen seen_with(uint64_t steps, const Loop::Until& until = {}) {
  Seen seen;
  Loop loop(shuffled(), {.batch_size = 4, .steps = steps});
  const LoopReport report =
      loop.run([&](const Example& batch) { return seen.steps.emplace_back(ids_of(batch)); },
               into(seen), until);
  EXPECT_EQ(report.steps, seen.steps.size());
  EXPECT_EQ(report.check_ins, seen.looks.size());
  EXPECT_EQ(loop.steps(), report.steps);
  EXPECT_FALSE(report.stopped);
  EXPECT_EQ(seen.steps, seen.said);
  return seen;
}

TEST(Loop, steps_are_the_same_for_any_n) {
  const Seen one = seen_with(1, {.epochs = 2});
  ASSERT_EQ(one.steps.size(), 52u);
  EXPECT_EQ(one.steps[25].size(), 3u) << "what is left at the end of a pass";
  EXPECT_NE(one.steps[0], one.steps[26]) << "another order in each";
  for (const uint64_t steps : {2, 5, 20, 1000}) {
    EXPECT_EQ(seen_with(steps, {.epochs = 2}).steps, one.steps) << steps;
  }
  EXPECT_EQ(seen_with(20).looks, (std::vector<size_t>{20, 6}));
}

TEST(Loop, a_run_of_so_many_steps_is_gone_on_with) {
  const Seen whole = seen_with(5, {.epochs = 2});
  Seen seen;
  Loop loop(shuffled(), {.batch_size = 4, .steps = 5});
  const auto step = [&](const Example& batch) { return seen.steps.emplace_back(ids_of(batch)); };
  for (const uint64_t steps : {3, 1, 9, 0}) {
    EXPECT_EQ(loop.run(step, into(seen), {.epochs = 9, .steps = steps}).steps, steps);
  }
  EXPECT_EQ(loop.run(step, into(seen)).steps, 26u - 13u) << "the rest of the pass";
  EXPECT_EQ(loop.run(step, into(seen), {.steps = 26}).steps, 26u) << "to a pass's very end";
  EXPECT_EQ(seen.steps, whole.steps);
  EXPECT_EQ(loop.run(step, into(seen)).steps, 26u) << "a pass of its own";
  seen.steps.resize(52);
  seen.said.resize(52);
  EXPECT_EQ(seen.said, whole.steps);
}

TEST(Loop, a_look_ends_it_after_the_steps_that_were_made) {
  Seen seen;
  Loop loop(shuffled(), {.batch_size = 4, .steps = 5});
  const auto step = [&](const Example& batch) { return seen.steps.emplace_back(ids_of(batch)); };
  const LoopReport report = loop.run(step, into(seen, false));
  EXPECT_TRUE(report.stopped);
  EXPECT_EQ(report.steps, 5u);
  EXPECT_EQ(seen.said.size(), 5u);
}

TEST(Loop, an_exception_of_a_step_comes_after_the_results_of_the_steps_before_it) {
  Seen seen;
  Loop loop(shuffled(), {.batch_size = 4, .steps = 10});
  const auto step = [&](const Example& batch) {
    if (seen.steps.size() == 13) throw std::runtime_error("the fourteenth");
    return seen.steps.emplace_back(ids_of(batch));
  };
  EXPECT_THROW(loop.run(step, into(seen)), std::runtime_error);
  EXPECT_EQ(seen.said.size(), 13u);
  EXPECT_EQ(loop.steps(), 13u);
}

TEST(Loop, by_the_clock_the_host_looks_seldom) {
  Seen seen;
  Loop loop(shuffled(), {.batch_size = 4, .steps = 3, .look_every_ns = 3'600'000'000'000});
  const auto step = [&](const Example& batch) { return seen.steps.emplace_back(ids_of(batch)); };
  EXPECT_EQ(loop.run(step, into(seen)).check_ins, 1u);
  EXPECT_EQ(seen.looks, std::vector<size_t>{26});
}

TEST(Loop, a_feed_of_super_batches_and_batches_that_are_kept) {
  Loader feed = Dataset::arrays(columns()).batch(50).build({.workers = 2});
  Loop loop(feed, {.batch_size = 16});
  std::vector<Example> kept;
  const auto keep = [&](const Example& batch) { return kept.emplace_back(batch).size(); };
  EXPECT_EQ(loop.run(keep).steps, 4u + 4u + 1u);
  int64_t next = 0;
  for (const Example& batch : kept) {
    for (const int64_t id : ids_of(batch)) EXPECT_EQ(id, next++);
  }
  EXPECT_EQ(next, kColumnRows);
}

TEST(Loop, invalid_arguments_are_refused) {
  Loop nothing(Dataset::range(0, 0), {.batch_size = 4});
  EXPECT_THROW(nothing.run([](const Example&) { return 0; }), Error);
  EXPECT_THROW(Loop(shuffled(), {.batch_size = 0}), Error);
  EXPECT_THROW(Loop(shuffled(), {.steps = 0}), Error);
  EXPECT_THROW(Loop(shuffled(), {.batch_size = INT64_MAX, .steps = 4}), Error);
  Loader elements = shuffled()
                        .map([](const Example& e, SampleContext&) {
                          return Example{{"id", e.at("id")}};
                        })
                        .build({.workers = 0});
  Loop loop(elements, {.batch_size = 4});
  try {
    loop.run([](const Example&) { return 0; });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("field 'id'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace penstock::train
