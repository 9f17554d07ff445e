#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "streams.h"

namespace penstock::testing {
namespace {

int64_t length_of(int64_t i) { return i * i % 23; }

// Element i is a list of length_of(i) times i + 1.
Node::Ref lists(int64_t count) {
  std::vector<Example> elements;
  for (int64_t i = 0; i < count; ++i) {
    elements.push_back(
        {{"list", tensor(Shape{length_of(i)},
                         std::vector<int64_t>(static_cast<size_t>(length_of(i)), i + 1))},
         {"number", tensor<int64_t>({}, {i})}});
  }
  return nodes::items(elements);
}

BucketByLengthOptions options(bool drop = false) {
  return {.field = "list", .boundaries = {5, 12}, .batch_sizes = {4, 3, 70}, .drop_last = drop};
}

// Which elements are in which batch.
std::vector<std::vector<int64_t>> expected(int64_t count, bool drop) {
  std::vector<std::vector<int64_t>> buckets(3), out;
  const size_t sizes[] = {4, 3, 70};
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = length_of(i) < 5 ? 0 : length_of(i) < 12 ? 1 : 2;
    buckets[at].push_back(i);
    if (buckets[at].size() == sizes[at]) out.push_back(std::exchange(buckets[at], {}));
  }
  for (auto& bucket : buckets) {
    if (!bucket.empty() && !drop) out.push_back(bucket);
  }
  return out;
}

TEST(BucketByLength, batches_of_about_one_length) {
  for (bool drop : {false, true}) {
    for (int64_t count : {0, 1, 10, 300}) {
      auto bucketed = nodes::bucket_by_length(lists(count), options(drop));
      check_stream(bucketed);
      StreamReading reading(bucketed);
      std::vector<Made> made = reading.epoch();
      auto batches = expected(count, drop);
      ASSERT_EQ(made.size(), batches.size());
      for (size_t b = 0; b < made.size(); ++b) {
        EXPECT_EQ(numbers({made[b]}, "number"), batches[b]);
        int64_t longest = 0;
        for (int64_t i : batches[b]) longest = std::max(longest, length_of(i));
        const Tensor& list = made[b]->at("list");
        ASSERT_EQ(list.shape(), (Shape{static_cast<int64_t>(batches[b].size()), longest}));
        size_t at = 0;
        for (int64_t i : batches[b]) {
          for (int64_t j = 0; j < longest; ++j) {
            EXPECT_EQ(list.as_span<const int64_t>()[at++], j < length_of(i) ? i + 1 : 0);
          }
        }
      }
    }
  }
  check_stream(nodes::repeat(nodes::bucket_by_length(lists(60), options()), 2));
}

TEST(BucketByLength, says_what_cannot_be) {
  auto with = [](auto change) {
    BucketByLengthOptions changed = options();
    change(changed);
    return nodes::bucket_by_length(lists(9), changed);
  };
  EXPECT_THROW(with([](auto& o) { o.boundaries = {5, 5}; }), Error);
  EXPECT_THROW(with([](auto& o) { o.batch_sizes = {5, 5}; }), Error);
  EXPECT_THROW(with([](auto& o) { o.batch_sizes[1] = 0; }), Error);
  EXPECT_THROW(StreamReading(with([](auto& o) { o.field = "none"; })), Error);
  EXPECT_THROW(StreamReading(with([](auto& o) { o.field = "number"; })), Error);
}

}  // namespace
}  // namespace penstock::testing
