// Stages on a stream that also exist in indexed plans.
#include "streams.h"

#include <gtest/gtest.h>

#include "penstock/pipeline/transformations/transformations.h"

namespace penstock::testing {
namespace {

namespace ref = reference;

bool any(int64_t) { return true; }

TEST(Streams, an_indexed_stage_and_filter) {
  check_stream(range(150), ref::range(0, 150));
  check_stream(odds(300), ref_odds(300));
  check_stream(filtered(range(1000), [](int64_t n) { return n % 97 == 0; }),
               ref::filter(ref::range(0, 1000), [](int64_t n) { return n % 97 == 0; }));
  check_stream(filtered(odds(200), [](int64_t n) { return n % 3 == 0; }),
               ref::filter(ref_odds(200), [](int64_t n) { return n % 3 == 0; }));
  check_stream(filtered(range(0), any), ref::range(0, 0));
  check_stream(faulty(150));
}

TEST(Streams, take_and_skip) {
  for (uint64_t n : {0, 1, 5, 63, 64, 65, 99, 100, 101, 1000}) {
    check_stream(nodes::take(odds(200), n), ref::take(ref_odds(200), n));
    check_stream(nodes::skip(odds(200), n), ref::skip(ref_odds(200), n));
  }
  check_stream(nodes::take(nodes::skip(odds(200), 70), 20),
               ref::take(ref::skip(ref_odds(200), 70), 20));
}

TEST(Streams, what_failed_is_handed_on_and_not_counted) {
  StreamReading taken(nodes::take(faulty(100), 10));
  EXPECT_EQ(numbers(taken.epoch()), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, -1, 8, 9, 10}));
  StreamReading skipped(nodes::skip(faulty(30), 20));
  EXPECT_EQ(numbers(skipped.epoch()),
            (std::vector<int64_t>{-1, -1, 22, 23, 24, 25, 26, -1, 28, 29}));
  check_stream(nodes::take(faulty(150), 100));
  check_stream(nodes::skip(faulty(150), 80));
}

TEST(Streams, repeat_goes_through_epochs_of_its_input) {
  check_stream(nodes::repeat(odds(100), 3), ref::repeat(ref_odds(100), 3));
  check_stream(nodes::repeat(nodes::repeat(odds(30), 2), 4),
               ref::repeat(ref::repeat(ref_odds(30), 2), 4));
  check_stream(nodes::take(nodes::repeat(odds(60), kEndless), 100), 300);
  check_stream(nodes::repeat(odds(60), kEndless), 200);
  check_stream(nodes::repeat(odds(0), kEndless), ref::range(0, 0));
  check_stream(nodes::repeat(odds(1), 1000), ref::range(0, 0));
}

TEST(Streams, shard_deals_out) {
  for (uint32_t world : {1u, 2u, 3u, 100u}) {
    for (uint32_t rank : {0u, world - 1}) {
      check_stream(nodes::shard(odds(200), rank, world), ref::shard(ref_odds(200), rank, world));
    }
  }
  check_stream(nodes::shard(faulty(150), 1u, 2u));
  StreamReading one(nodes::shard(odds(200), 1u, 3u)), other(nodes::shard(odds(200), 2u, 3u));
  one.reader().begin(0);
  EXPECT_THROW(other.reader().load(0, one.reader().save()), Error);
  for (Remainder remainder : {Remainder::kDrop, Remainder::kPad}) {
    EXPECT_THROW(StreamReading(nodes::shard(odds(9), 0u, 2u, remainder)), Error);
  }
}

TEST(Streams, concatenate_one_after_the_other) {
  check_stream(
      nodes::concatenate(std::vector<Node::Ref>{odds(100), range(0), range(70), odds(0), odds(10)}),
      ref::concatenate(
          {ref_odds(100), ref::range(0, 0), ref::range(0, 70), ref_odds(0), ref_odds(10)}));
  check_stream(nodes::concatenate(std::vector<Node::Ref>{faulty(80), faulty(20)}));
  // Elements of two lengths, and of an unknown length.
  auto pairs = nodes::batch(odds(40), 2u, true), triples = nodes::batch(odds(40), 3u, true);
  check_stream(nodes::concatenate(std::vector<Node::Ref>{pairs, triples, pairs}));
  auto inferred = nodes::map(
      odds(60), test::inferred_from_elements([](int64_t n, const Keys&, uint32_t) { return n; }));
  check_stream(nodes::concatenate(std::vector<Node::Ref>{inferred, odds(20)}),
               ref::concatenate({ref_odds(60), ref_odds(20)}));
}

TEST(Streams, zip_side_by_side) {
  auto both = [](std::vector<Node::Ref> inputs) { return nodes::zip(std::move(inputs)); };
  StreamReading reading(both({odds(160), range(200), odds(300)}));
  std::vector<Made> made = reading.epoch(2);
  ref::Lists expected = ref::zip({ref_odds(160), ref::range(0, 200), ref_odds(300)}, 2);
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    for (size_t j = 0; j < 3; ++j) {
      EXPECT_EQ(made[i]->at(std::to_string(j)).as_span<const int64_t>()[0], expected[i][j]);
    }
  }
  check_stream(both({odds(160), range(200), odds(300)}));
  check_stream(both({range(100), faulty(80), faulty(160)}));
  check_stream(both({odds(0), range(10)}));
  auto inferred = nodes::map(
      odds(60), test::inferred_from_elements([](int64_t n, const Keys&, uint32_t) { return n; }));
  check_stream(both({inferred, odds(200)}));
}

TEST(Streams, a_tail_is_applied_on_the_way_into_a_further_stage) {
  auto random = nodes::map(odds(200), test::number_op([](int64_t, const Keys& keys, uint32_t j) {
                             return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
                           }));
  check_stream(random);
  check_stream(nodes::take(random, 50));
  check_stream(nodes::skip(random, 50));
  check_stream(nodes::shard(random, 1u, 2u));
  check_stream(nodes::take(nodes::batch(odds(200), 8u, false), 5));
  // take moves before the tail, and the elements after a skip keep their ordinals.
  StreamReading whole(random), rest(nodes::skip(random, 50)), first(nodes::take(random, 50));
  std::vector<int64_t> all = numbers(whole.epoch()), taken = numbers(first.epoch()),
                       left = numbers(rest.epoch());
  taken.insert(taken.end(), left.begin(), left.end());
  EXPECT_EQ(taken, all);
}

}  // namespace
}  // namespace penstock::testing
