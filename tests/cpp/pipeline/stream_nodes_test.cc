// Stages of streams through Dataset and a Loader: two passes, and restoring at every place.
#include <gtest/gtest.h>

#include <algorithm>

#include "numbers.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock {
namespace {

using test::number_of;
using test::Numbers;
using test::odd;

Numbers first_column(const Example& batch) {
  auto column = batch[0].second.as_span<const int64_t>();
  return {column.begin(), column.end()};
}

std::vector<Numbers> first_columns(Loader& feed) {
  std::vector<Numbers> all;
  for (auto& batch : feed.epoch()) all.push_back(first_column(batch));
  return all;
}

Dataset odds(int64_t end) { return Dataset::range(0, end).shuffle({.seed = 4}).filter(odd); }

class StreamNodes : public ::testing::TestWithParam<uint32_t> {
 protected:
  LoaderOptions options() const { return {.workers = GetParam()}; }

  // Two passes, and the first one from every place of it on other numbers of workers.
  std::vector<Numbers> check(const Dataset& dataset) {
    Loader feed = dataset.build(options());
    std::vector<Numbers> whole = first_columns(feed), second = first_columns(feed);
    Loader again = dataset.build(options());
    for (size_t i = 0; i < whole.size(); ++i) {
      LoaderState state = LoaderState::from_json(again.state().to_json());
      Loader other = dataset.build({.workers = i % 3});
      other.restore(state);
      EXPECT_EQ(first_columns(other),
                std::vector<Numbers>(whole.begin() + static_cast<int64_t>(i), whole.end()))
          << state.to_json();
      if (i % 8 == 0) {
        EXPECT_EQ(first_columns(other), second) << "the next pass";
      }
      EXPECT_EQ(first_column(*again.next()), whole[i]);
    }
    return whole;
  }
};
INSTANTIATE_TEST_SUITE_P(, StreamNodes, ::testing::Values(0, 2));

TEST_P(StreamNodes, what_indexed_plans_have_as_well) {
  EXPECT_EQ(check(odds(100).take(20).batch(7)).size(), 3u);
  EXPECT_EQ(check(odds(100).batch(7).take(2)).size(), 2u);
  EXPECT_EQ(check(odds(100).skip(20).batch(7)).size(), 5u);
  EXPECT_EQ(check(odds(100).shard(1, 2).batch(5)).size(), 5u);
  EXPECT_EQ(check(odds(40).repeat(3).take(55).batch(5)).size(), 11u);
  EXPECT_EQ(check(odds(40).concatenate(Dataset::range(10)).batch(6)).size(), 5u);
  EXPECT_EQ(check(Dataset::zip({odds(40), Dataset::range(100)}).batch(6)).size(), 4u);
}

TEST_P(StreamNodes, cut_shuffled_and_taken_apart) {
  auto below = [](const Example& element, SampleContext&) { return number_of(element) < 30; };
  EXPECT_EQ(check(Dataset::range(100).take_while(below).batch(7)).size(), 5u);
  std::vector<Numbers> made = check(odds(200).shuffle({.seed = 1, .buffer = 30}).batch(7));
  Numbers all;
  for (const Numbers& batch : made) all.insert(all.end(), batch.begin(), batch.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), 100u);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], 2 * i + 1);
  EXPECT_EQ(check(odds(100).batch(8).unbatch().batch(5)).size(), 10u);
  EXPECT_EQ(check(odds(100).batch(8).rebatch(6, {.drop_last = true})).size(), 8u);
}

TEST_P(StreamNodes, made_of_several_others) {
  auto some = [](const Example& element) {
    return Dataset::range(number_of(element) % 5).shuffle({.seed = 2});
  };
  EXPECT_EQ(check(odds(60).flat_map(some).batch(7)).size(), 9u);
  EXPECT_EQ(check(odds(60).interleave(some, {.cycle = 3, .block = 2}).batch(7)).size(), 9u);
  std::vector<Dataset> inputs{odds(60), Dataset::range(40)};
  EXPECT_EQ(check(Dataset::sample_from(inputs, {.weights = {1, 3}, .seed = 5}).batch(7)).size(),
            10u);
  auto zeros_and_ones = Dataset::range(100).map([](const Example& element, SampleContext&) {
    Tensor bit = Tensor::make(DType::kInt64, {});
    bit.as_span<int64_t>()[0] = number_of(element) / 3 % 2;
    return Example{{"", bit}};
  });
  EXPECT_EQ(check(Dataset::choose_from(zeros_and_ones, inputs, false).batch(7)).size(), 10u);
  EXPECT_EQ(check(zeros_and_ones.unique().batch(7)).size(), 1u);
}

TEST_P(StreamNodes, batches_of_about_one_length) {
  auto list = [](const Example& element, SampleContext&) {
    const int64_t length = number_of(element) * number_of(element) % 13;
    Tensor values = Tensor::make(DType::kInt64, {length});
    for (int64_t& value : values.as_span<int64_t>()) value = number_of(element);
    return Example{{"list", values}};
  };
  Dataset lists = odds(120).map(list);
  BucketByLengthOptions options{.field = "list", .boundaries = {4, 9}, .batch_sizes = {8, 5, 3}};
  EXPECT_GE(check(lists.bucket_by_length(options)).size(), 60u / 8);
}

TEST_P(StreamNodes, functions_that_carry_on) {
  auto number = [](int64_t n) {
    Tensor tensor = Tensor::make(DType::kInt64, {});
    tensor.as_span<int64_t>()[0] = n;
    return Example{{"", tensor}};
  };
  auto sum = [number](const Example& carry, const Example& element) {
    Example next = number(number_of(carry) + number_of(element));
    return std::pair(next, next);
  };
  Dataset sums = Dataset::range(1, 60).scan(number(0), sum, "sum").filter(odd).batch(4);
  EXPECT_EQ(check(sums)[0], (Numbers{1, 3, 15, 21}));
  auto count_down = [number](uint64_t epoch) -> Pull {
    return [number, n = int64_t{70} + static_cast<int64_t>(epoch)]() mutable {
      return n == 0 ? std::nullopt : std::optional(number(n--));
    };
  };
  EXPECT_EQ(check(Dataset::generator(count_down, "down").batch(4)).size(), 18u);
}

}  // namespace
}  // namespace penstock
