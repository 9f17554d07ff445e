#include "penstock/pipeline/stages/split_batch.h"

#include <gtest/gtest.h>

#include "../ops.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock {
namespace {

using Numbers = std::vector<int64_t>;

Numbers numbers_of(const Tensor& column) {
  auto values = column.as_span<const int64_t>();
  return {values.begin(), values.end()};
}

// The same as numpy.array_split.
std::vector<Numbers> split(const Numbers& all, uint32_t parts) {
  std::vector<Numbers> out(parts);
  size_t at = 0;
  for (uint32_t part = 0; part < parts; ++part) {
    size_t rows = all.size() / parts + (part < all.size() % parts ? 1 : 0);
    while (rows-- > 0) out[part].push_back(all[at++]);
  }
  return out;
}

TEST(SplitBatch, parts_are_as_equal_as_can_be_and_views_of_one_batch) {
  for (uint32_t parts : {1u, 2u, 3u, 5u, 11u}) {
    Loader feed = Dataset::range(0, 17).batch(10).split_batch(parts).build({.workers = 1});
    int64_t first = 0;
    for (auto& batch : feed.epoch()) {
      ASSERT_EQ(batch.size(), parts);
      Numbers all;
      for (int64_t n = first; n < std::min<int64_t>(first + 10, 17); ++n) all.push_back(n);
      const auto expected = split(all, parts);
      const auto* begin = batch.at("0").data();
      for (uint32_t part = 0; part < parts; ++part) {
        const Tensor& column = batch.at(std::to_string(part));
        EXPECT_EQ(numbers_of(column), expected[part]) << parts << " parts, part " << part;
        if (column.nbytes() == 0) continue;
        EXPECT_EQ(column.data(), begin) << "one piece of memory";
        begin += column.nbytes();
      }
      first += 10;
    }
    EXPECT_EQ(first, 20);
  }
}

TEST(SplitBatch, strings_and_names) {
  Loader feed = Dataset::range(8, 13)
                    .map(std::make_shared<test::TextOp>())
                    .batch(5)
                    .split_batch(2)
                    .build({.workers = 0});
  auto batch = feed.next();
  ASSERT_TRUE(batch);
  auto text = batch->at("1/text").as_span<const uint8_t>();
  EXPECT_EQ(std::string(text.begin(), text.end()), "1112");
  EXPECT_EQ(numbers_of(batch->at("1/text/offsets")), (Numbers{0, 2, 4}));
  EXPECT_EQ(numbers_of(batch->at("0/number")), (Numbers{8, 9, 10}));
}

TEST(SplitBatch, a_state_restores_with_another_number_of_parts) {
  auto make = [](uint32_t parts) {
    return Dataset::range(0, 40).shuffle({.seed = 3}).batch(4).take(9).skip(1).split_batch(parts);
  };
  Loader whole = make(1).build({.workers = 2});
  std::vector<Numbers> expected;
  for (auto& batch : whole.epoch()) expected.push_back(numbers_of(batch.at("0")));
  ASSERT_EQ(expected.size(), 8u);
  Loader feed = make(3).build({.workers = 2});
  auto range = feed.epoch();
  auto at = range.begin();
  for (size_t taken = 1; taken < expected.size(); ++taken, ++at) {
    Loader other = make(2).build({.workers = 0});
    other.restore(LoaderState::from_json(feed.state().to_json()));
    for (size_t i = taken; i < expected.size(); ++i) {
      auto batch = other.next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(numbers_of(batch->at("0")), split(expected[i], 2)[0]);
      EXPECT_EQ(numbers_of(batch->at("1")), split(expected[i], 2)[1]);
    }
    EXPECT_FALSE(other.next());
  }
}

TEST(SplitBatch, of_a_stream) {
  auto odd = [](const Example& element, SampleContext&) {
    return element.at("").as_span<const int64_t>()[0] % 2 == 1;
  };
  Loader feed = Dataset::range(8, 20).filter(odd).batch(4).take(2).split_batch(2).repeat(2).build();
  for (int round = 0; round < 2; ++round) {
    auto batch = feed.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(numbers_of(batch->at("0")), (Numbers{9, 11}));
    EXPECT_EQ(numbers_of(batch->at("1")), (Numbers{13, 15}));
    batch = feed.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(numbers_of(batch->at("0")), (Numbers{17}));
    EXPECT_EQ(numbers_of(batch->at("1")), (Numbers{19}));
  }
  EXPECT_FALSE(feed.next());
}

TEST(SplitBatch, where_it_cannot_stand_is_an_error_at_build) {
  Dataset batches = Dataset::range(0, 20).batch(4);
  auto same = [](const Example& element, SampleContext&) { return element; };
  for (const Dataset& wrong :
       {Dataset::range(0, 20).split_batch(2), batches.split_batch(2).map(same),
        batches.split_batch(2).batch(2), batches.split_batch(2).split_batch(2),
        batches.map(same).split_batch(2), Dataset::zip({batches.split_batch(2), batches})}) {
    try {
      (void)wrong.build();
      ADD_FAILURE() << "it was built";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("behind batch(n)"), std::string::npos);
    }
  }
  EXPECT_THROW((void)batches.split_batch(0), Error);
}

}  // namespace
}  // namespace penstock
