// Invalid arguments of a C++ Loader and a Dataset.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <functional>
#include <limits>
#include <memory>
#include <ranges>
#include <string>

#include "datasets.h"
#include "numbers.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/feeds.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/transformations/operations.h"
#include "snapshot_folder.h"
#include "tests/cpp/train/refusals.h"

namespace penstock {
namespace {

using testing::NumberedSamples;
using train::testing::message_of;

constexpr auto kRefused = Code::kInvalidArgument;

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

static_assert(std::ranges::input_range<Loader::Batches>);
static_assert(!std::is_copy_constructible_v<Loader::Batches>);
template <class B>
concept BeginsAsTemporary = requires(B batches) {
  std::move(batches).begin();
};
static_assert(!BeginsAsTemporary<Loader::Batches>, "an iterator to what is gone");

TEST(LoaderArguments, null_is_refused_where_it_is_given) {
  const Dataset some = Dataset::range(3);
  const Example carry{{"sum", testing::scalar(0)}};
  using Open = std::function<Dataset(const Example&)>;
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [] { Loader(std::shared_ptr<NumberedSamples>()); }, [] { Dataset{Node::Ref()}; },
           [] { Dataset::generator(nullptr); }, [&] { some.map(OpRef()); },
           [&] { some.map(FunctionOp::Function()); },
           [&] {
             some.map_field<int64_t>(
                 "", {}, std::function<void(std::span<const int64_t>, std::span<int64_t>)>());
           },
           [&] { some.filter(OpRef()); },
           [&] { some.filter(std::function<bool(const Example&, SampleContext&)>()); },
           [&] { some.take_while(OpRef()); }, [&] { some.unique(FunctionOp::Function()); },
           [&] { some.scan(carry, nullptr); }, [&] { some.flat_map(nullptr); },
           [&] { some.interleave(Open()); },
           [&] {
             Dataset moved = some, to = std::move(moved);
             moved.batch(2);
           },
           [&] {
             Dataset moved = some, to = std::move(moved);
             moved.build();
           },
           [&] {
             Dataset moved = some, to = std::move(moved);
             moved.cardinality();
           }}) {
    EXPECT_TRUE(says(message_of(kRefused, call), "null"));
  }
}

TEST(LoaderArguments, a_loader_that_was_moved_from_is_closed) {
  Loader feed(NumberedSamples(3), {.workers = 0});
  Loader to = std::move(feed);
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { feed.next(); }, [&] { feed.epoch(); }, [&] { feed.steps(1); },
           [&] { feed.stats(); }, [&] { feed.size(); }, [&] { feed.state(); },
           [&] { feed.restore(to.state()); }, [&] { feed.failure(); }, [&] { feed.snapshot(); },
           [&] { feed.report("nowhere"); }}) {
    message_of(Code::kClosed, call);
  }
  EXPECT_TRUE(feed.closed());
  feed.close();
  EXPECT_TRUE(to.next());
}

TEST(LoaderArguments, names_are_utf8) {
  const Dataset some = Dataset::range(3);
  const std::string bad = "a\xff";
  auto same = [](const Example& element, SampleContext&) { return element; };
  const Example carry{{"sum", testing::scalar(0)}};
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { some.map(same, bad); },
           [&] {
             some.map_field<int64_t>(
                 "", {}, [](auto, auto) {}, bad);
           },
           [&] { some.map_field<int64_t>(bad, {}, [](auto, auto) {}); },
           [&] { some.map(cast(DType::kInt32, {bad})); }, [&] { some.filter(test::odd, bad); },
           [&] { some.unique(same, bad); },
           [&] {
             some.scan(
                 carry,
                 [](const Example& from, const Example& element) {
                   return std::pair(from, element);
                 },
                 bad);
           },
           [&] { some.flat_map([&](const Example&) { return some; }, bad); },
           [&] { some.interleave([&](const Example&) { return some; }, {}, bad); },
           [&] { Dataset::generator([](uint64_t) { return Pull(); }, bad); },
           [&] {
             Dataset::zip({some, some}, {"a", bad});
           },
           [&] { some.padded_batch(2, {{.name = bad}}); },
           [&] { some.bucket_by_length({.field = bad, .boundaries = {}, .batch_sizes = {1}}); },
           [&] {
             some.bucket_by_length(
                 {.field = {}, .boundaries = {}, .batch_sizes = {1}, .padding = {{.name = bad}}});
           },
           [&] { parse_example({}, bad); },
           [&] { Feedable().add(bad, some.build({.workers = 0})); }}) {
    EXPECT_TRUE(says(message_of(kRefused, call), "'a\\xff' is not UTF-8"));
  }
}

// The text of the error of its first batch.
std::string refusal_of(const Dataset& dataset) {
  return message_of(kRefused, [&] { dataset.build({.workers = 0}).next(); });
}

TEST(LoaderArguments, refusals_say_what_to_do) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  const Dataset all = Dataset::range(-kMax - 1, kMax);
  EXPECT_TRUE(says(refusal_of(all.shuffle({.seed = 1})), "too long to be shuffled"));
  EXPECT_TRUE(says(refusal_of(all.shuffle_blocks({.block = 8})), "too long to be shuffled"));
  EXPECT_TRUE(
      says(refusal_of(Dataset::range(0, kMax).shuffle({.seed = 1})), "too long to be shuffled"));
  EXPECT_TRUE(says(refusal_of(Dataset::range(5).window({.size = 2}).batch(3)), "drop_last"));
  const Dataset pairs =
      Dataset::items({{{"id", testing::scalar(1)}, {"tokens", testing::filled({3}, 1)}},
                      {{"id", testing::scalar(2)}, {"tokens", testing::filled({4}, 1)}}});
  const std::string why =
      refusal_of(pairs.bucket_by_length({.field = {}, .boundaries = {4}, .batch_sizes = {1, 1}}));
  EXPECT_TRUE(says(why, "field='tokens'")) << why;
}

TEST(LoaderArguments, lists_of_different_lengths_are_better_arrays) {
  auto spec = [](size_t numbers, const std::string& nest) {
    std::vector<Leaf> leaves;
    for (size_t i = 0; i < numbers; ++i) {
      leaves.push_back({"x/" + std::to_string(i), LeafKind::kDense, DType::kInt64, {}});
    }
    return ElementSpec(leaves, nest);
  };
  const ElementSpec one = spec(1, "{1:x[.]}"), three = spec(3, "{1:x[...]}"),
                    pair = spec(2, "{1:x(..)}");
  EXPECT_TRUE(says(schema_error(one, three).what(), "give np.asarray(list)"));
  EXPECT_FALSE(says(schema_error(one, pair).what(), "asarray"));
  EXPECT_FALSE(says(schema_error(one, one).what(), "asarray"));
}

using LoaderLimits = testing::SnapshotFolder;

TEST_F(LoaderLimits, a_report_above_the_limit_on_file_size_is_an_error_and_no_signal) {
  Loader feed(NumberedSamples(3), {.workers = 0});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* handler = std::signal(SIGXFSZ, SIG_DFL);
  rlimit small = before;
  small.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  message_of(Code::kSystem, [&] { feed.report(path()); });
  message_of(Code::kSystem, [&] { feed.trace(path()); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace penstock
