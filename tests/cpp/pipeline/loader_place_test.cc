// The place of a C++ Loader: taken, restored elsewhere, written as JSON.
#include <gtest/gtest.h>

#include <algorithm>

#include "datasets.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/scheduler/order.h"
#include "tests/cpp/train/refusals.h"

namespace penstock {
namespace {

using testing::Batches;
using testing::flat;
using testing::iota;
using testing::kWorkers;
using testing::Made;
using testing::NumberedSamples;
using testing::numbers;
using testing::take_epoch;
using train::testing::message_of;

TEST(Loader, it_restores_at_every_step_with_any_number_of_workers) {
  LoaderOptions options{.batch_size = 6, .shuffle = true, .seed = 3, .workers = 2};
  Loader whole(NumberedSamples(50), options);
  Batches expected;
  std::vector<LoaderState> states{whole.state()};
  for (auto& batch : whole.steps(20)) {
    expected.push_back(numbers(batch));
    states.push_back(whole.state());
  }
  ASSERT_EQ(expected.size(), 20u);
  for (size_t step = 0; step < states.size(); ++step) {
    options.workers = kWorkers[step % 4];
    Loader feed(NumberedSamples(50), options);
    feed.restore(LoaderState::from_json(states[step].to_json()));
    EXPECT_EQ(feed.state(), states[step]);
    Batches rest;
    for (auto& batch : feed.steps(20 - step)) rest.push_back(numbers(batch));
    EXPECT_EQ(rest, Batches(expected.begin() + int64_t(step), expected.end())) << step;
  }
}

TEST(Loader, a_loader_goes_back_and_forth_in_mid_flight) {
  Loader feed(NumberedSamples(60), {.batch_size = 6, .shuffle = true, .workers = 3});
  Batches expected = take_epoch(feed);
  LoaderState start = feed.state();
  start.epoch = 0;
  for (uint64_t at : {0, 7, 3, 9, 1, 5, 5, 0}) {
    LoaderState state = start;
    state.batches = at;
    feed.restore(state);
    Batches rest;
    for (auto& batch : feed.epoch()) {
      rest.push_back(numbers(batch));
      if (rest.size() == 3) break;
    }
    size_t n = std::min<size_t>(3, 10 - at);
    EXPECT_EQ(rest, Batches(expected.begin() + int64_t(at), expected.begin() + int64_t(at + n)));
  }
}

TEST(Loader, it_restores_at_another_world_size) {
  LoaderOptions options{.batch_size = 5, .shuffle = true, .drop_last = true, .workers = 2};
  std::multiset<int64_t> seen;
  LoaderState state;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    options.shard = {rank, 2};
    Loader feed(NumberedSamples(120), options);
    for (auto& batch : feed.steps(3)) {
      for (int64_t index : numbers(batch)) seen.insert(index);
    }
    EXPECT_TRUE(rank == 0 || feed.state() == state);
    state = feed.state();
  }
  EXPECT_EQ(state.batches, 6u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    options.shard = {rank, 3};
    Loader feed(NumberedSamples(120), options);
    feed.restore(state);
    for (int64_t index : flat(take_epoch(feed))) seen.insert(index);
  }
  std::vector<int64_t> all(seen.begin(), seen.end());
  EXPECT_EQ(all, iota(120));
}

TEST(Loader, an_unordered_state_knows_what_was_delivered_ahead) {
  testing::Gate gate;
  auto dataset = std::make_shared<Made>(10, [&](uint64_t index, SampleContext&) {
    if (index == 0) gate.wait();
    return Example{{"index", testing::scalar(int64_t(index))}};
  });
  LoaderOptions options{.batch_size = 1, .workers = 2, .ordered = false};
  LoaderState state;
  std::multiset<int64_t> seen;
  {
    Loader feed(dataset, options);
    for (auto& batch : feed.steps(4)) seen.insert(numbers(batch)[0]);
    state = feed.state();
    gate.open();
  }
  EXPECT_FALSE(seen.contains(0));
  EXPECT_EQ(state.batches, 0u);
  EXPECT_EQ(state.ahead, std::vector<uint64_t>(seen.begin(), seen.end()));
  Loader feed(dataset, options);
  feed.restore(LoaderState::from_json(state.to_json()));
  for (int64_t index : flat(take_epoch(feed))) seen.insert(index);
  EXPECT_EQ(std::vector<int64_t>(seen.begin(), seen.end()), iota(10));
}

TEST(Loader, a_state_of_another_plan_is_refused) {
  Loader feed(NumberedSamples(10), {.batch_size = 2});
  LoaderState state = feed.state();
  for (auto change : std::vector<std::function<void(LoaderState&)>>{
           [](auto& s) { s.seed = 1; }, [](auto& s) { s.length = 11; },
           [](auto& s) {
             s.plan = {"get()", "shuffle(seed=0)", "batch(2)"};
           },
           [](auto& s) {
             s.plan = {"get()", "batch(3)"};
           },
           [](auto& s) { s.plan.clear(); }}) {
    LoaderState other = state;
    change(other);
    EXPECT_THROW(feed.restore(other), Error);
  }
  EXPECT_EQ(flat(take_epoch(feed)), iota(10));
}

TEST(Loader, a_state_says_how_samples_are_ordered_and_batched) {
  Loader feed(NumberedSamples(10), {.batch_size = 4, .shuffle = true, .seed = 3});
  EXPECT_EQ(feed.state().plan, (std::vector<std::string>{"get()", "shuffle(seed=3)", "batch(4)"}));
}

TEST(Loader, a_state_beyond_its_epoch_is_refused) {
  Loader samples(NumberedSamples(10), {.batch_size = 5, .workers = 0});
  Loader batches = Dataset::range(10).batch(5).build({.workers = 0});
  Loader elements = Dataset::range(2).build({.workers = 0});
  Loader shard = Dataset::range(10).shard(1, 2).batch(3).build({.workers = 0});
  for (Loader* feed : {&samples, &batches, &elements, &shard}) {
    const LoaderState state = feed->state();
    for (auto change : std::vector<std::function<void(LoaderState&)>>{
             [](auto& s) { s.batches = 77; }, [](auto& s) { s.batches = UINT64_MAX; },
             [](auto& s) { s.base = s.batches = 77; }, [](auto& s) { s.ahead = {77}; },
             [](auto& s) { s.ahead = {UINT64_MAX}; },
             [](auto& s) {
               s.batches = 2, s.ahead = {5, UINT64_MAX, 1};
             }}) {
      LoaderState other = state;
      change(other);
      if (other == state) continue;
      message_of(Code::kInvalidArgument, [&] { feed->restore(other); });
    }
    LoaderState end = state;
    end.batches = 2;
    feed->restore(end);
    const uint64_t left = feed == &shard ? 1 : 0;
    uint64_t count = 0;
    while (feed->next()) ++count;
    EXPECT_EQ(count, left);
    EXPECT_TRUE(feed->next());
  }
}

TEST(Loader, the_error_of_a_refused_state_says_how_many_there_are) {
  Loader samples(NumberedSamples(10), {.batch_size = 2, .workers = 0});
  Loader batches = Dataset::range(10).batch(2).build({.workers = 0});
  Loader elements = Dataset::range(5).build({.workers = 0});
  for (Loader* feed : {&samples, &batches, &elements}) {
    LoaderState state = feed->state();
    state.batches = 6;
    const std::string text = message_of(Code::kInvalidArgument, [&] { feed->restore(state); });
    const std::string what = feed == &elements ? "elements" : "batches";
    EXPECT_NE(text.find("6 " + what + " of an epoch were delivered, and there are 5"),
              std::string::npos)
        << text;
  }
}

TEST(Loader, a_state_beyond_a_streams_end_is_refused) {
  Loader feed = Dataset::range(10).shuffle({.seed = 1, .buffer = 3}).batch(5).build({.workers = 0});
  feed.next();
  LoaderState state = feed.state();
  feed.restore(state);
  EXPECT_TRUE(feed.next());
  state.batches = 77;
  message_of(Code::kInvalidArgument, [&] { feed.restore(state); });
}

TEST(LoaderState, of_a_dataset_names_its_stages) {
  LoaderState state{2, 9, {}, 5, 100, {"range(0, 100)", "map(\"x\")"}, 1, 0, {}};
  EXPECT_EQ(state.to_json(),
            R"-({"version":1,"epoch":2,"batches":9,"ahead":[],"seed":5,"length":100,)-"
            R"-("plan":["range(0, 100)","map(\"x\")"]})-");
  EXPECT_EQ(LoaderState::from_json(state.to_json()), state);
}

TEST(LoaderState, bad_json_is_refused) {
  LoaderState state{2, 9, {11, 12}, 7, 100, {"get()", "batch(5)"}, 1, 0, {}};
  EXPECT_EQ(LoaderState::from_json(state.to_json()), state);
  std::string good = state.to_json();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_THROW(LoaderState::from_json(good.substr(0, n)), Error) << n;
  }
  for (const char* bad :
       {"[]", "{}", "{\"version\": 2}", "null", "{\"version\": 1, \"version\": 1}"}) {
    EXPECT_THROW(LoaderState::from_json(bad), Error) << bad;
  }
  EXPECT_THROW(LoaderState::from_json(good + "x"), Error);
  good.replace(good.find("\"epoch\":2"), 9, "\"epoch\":-2");
  EXPECT_THROW(LoaderState::from_json(good), Error);
}

}  // namespace
}  // namespace penstock
