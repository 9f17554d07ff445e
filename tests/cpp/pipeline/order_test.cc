#include "penstock/pipeline/scheduler/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "penstock/base/error.h"

namespace penstock {
namespace {

using Indices = std::vector<uint64_t>;

Indices batch(const Order& order, uint64_t epoch, uint64_t base, uint64_t step) {
  Indices rows(order.samples_in(base, step));
  order.indices(epoch, base, step, 0, rows);
  return rows;
}

Indices whole_epoch(const Order& order, uint64_t epoch, uint64_t base = 0) {
  Indices all;
  for (uint64_t step = 0; step < order.steps(base); ++step) {
    Indices rows = batch(order, epoch, base, step);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

Order::Options of_rank(Order::Options options, uint32_t rank, uint32_t world) {
  options.rank = rank;
  options.world = world;
  return options;
}

// How often each index occurs in all ranks' epochs together.
std::map<uint64_t, int> counts(const Order::Options& options, uint32_t world, uint64_t base = 0) {
  std::map<uint64_t, int> count;
  for (uint32_t rank = 0; rank < world; ++rank) {
    for (uint64_t index : whole_epoch(Order(of_rank(options, rank, world)), 3, base)) {
      ++count[index];
    }
  }
  return count;
}

const uint64_t kLengths[] = {0, 1, 2, 3, 5, 7, 8, 64, 100, 256, 257, 1000};
const uint64_t kBatchSizes[] = {1, 2, 3, 7, 64, 1001};

TEST(Order, one_rank_sees_every_index_exactly_once) {
  for (uint64_t length : kLengths) {
    for (uint64_t size : kBatchSizes) {
      for (bool shuffle : {false, true}) {
        Order order({.length = length, .batch_size = size, .shuffle = shuffle, .seed = 5});
        Indices all = whole_epoch(order, 2);
        EXPECT_TRUE(shuffle || std::is_sorted(all.begin(), all.end()));
        std::sort(all.begin(), all.end());
        ASSERT_EQ(all.size(), length);
        for (uint64_t i = 0; i < length; ++i) ASSERT_EQ(all[i], i);
      }
    }
  }
}

TEST(Order, only_the_last_batch_is_short) {
  Order order({.length = 10, .batch_size = 4});
  EXPECT_EQ(order.steps(), 3u);
  EXPECT_EQ(order.samples_in(0, 1), 4u);
  EXPECT_EQ(order.samples_in(0, 2), 2u);
  EXPECT_EQ(order.samples_in(0, 3), 0u);
  EXPECT_EQ(batch(order, 0, 0, 2), (Indices{8, 9}));
}

TEST(Order, drop_last_leaves_full_batches_only) {
  Order order({.length = 10, .batch_size = 4, .drop_last = true});
  EXPECT_EQ(order.steps(), 2u);
  EXPECT_EQ(whole_epoch(order, 0), (Indices{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Order({.length = 3, .batch_size = 4, .drop_last = true}).steps(), 0u);
}

TEST(Order, drop_last_ranks_are_disjoint_and_equal_in_count) {
  for (uint64_t length : kLengths) {
    for (uint64_t size : {1, 3, 7}) {
      for (uint32_t world : {2, 3, 5}) {
        Order::Options options{
            .length = length, .batch_size = size, .shuffle = true, .drop_last = true};
        std::map<uint64_t, int> count = counts(options, world);
        uint64_t rounds = length / size / world;
        EXPECT_EQ(count.size(), rounds * size * world);
        for (auto [index, times] : count) EXPECT_EQ(times, 1) << index;
      }
    }
  }
}

TEST(Order, padded_ranks_are_equal_in_count_and_miss_nothing) {
  for (uint64_t length : kLengths) {
    for (uint64_t size : {1, 3, 7, 300}) {
      for (uint32_t world : {2, 3, 5}) {
        Order::Options options{.length = length, .batch_size = size, .shuffle = true};
        std::map<uint64_t, int> count = counts(options, world);
        EXPECT_EQ(count.size(), length);
        uint64_t total = 0;
        for (auto [index, times] : count) total += static_cast<uint64_t>(times);
        uint64_t round = size * world;
        EXPECT_EQ(total, (length + round - 1) / round * round);
        for (uint32_t rank = 0; rank < world; ++rank) {
          Order order(of_rank(options, rank, world));
          for (uint64_t step = 0; step < order.steps(); ++step) {
            EXPECT_EQ(order.samples_in(0, step), size);
          }
        }
      }
    }
  }
}

TEST(Order, padding_begins_the_order_again) {
  Order order({.length = 5, .batch_size = 2, .rank = 1, .world = 2});
  EXPECT_EQ(order.steps(), 2u);
  EXPECT_EQ(batch(order, 0, 0, 0), (Indices{2, 3}));
  EXPECT_EQ(batch(order, 0, 0, 1), (Indices{1, 2}));  // positions 6 and 7
}

// After k steps, `world` ranks continue at any other world size: together they use the epoch's
// order like one rank.
TEST(Order, an_epoch_goes_on_at_another_world_size) {
  Order::Options options{.length = 240, .batch_size = 4, .shuffle = true, .seed = 9};
  Indices expected = whole_epoch(Order(options), 7);
  for (uint32_t before : {1, 2, 3}) {
    for (uint32_t after : {1, 2, 4}) {
      Indices seen;
      for (uint64_t step = 0; step < 8; ++step) {
        for (uint32_t rank = 0; rank < before; ++rank) {
          Indices rows = batch(Order(of_rank(options, rank, before)), 7, 0, step);
          seen.insert(seen.end(), rows.begin(), rows.end());
        }
      }
      const uint64_t base = 8 * before;
      uint64_t steps = Order(of_rank(options, 0, after)).steps(base);
      EXPECT_EQ(steps, (60 - base) / after);
      for (uint64_t step = 0; step < steps; ++step) {
        for (uint32_t rank = 0; rank < after; ++rank) {
          Indices rows = batch(Order(of_rank(options, rank, after)), 7, base, step);
          seen.insert(seen.end(), rows.begin(), rows.end());
        }
      }
      EXPECT_EQ(seen, expected) << before << " -> " << after;
    }
  }
}

TEST(Order, a_base_at_or_past_the_end_leaves_nothing) {
  Order order({.length = 10, .batch_size = 4, .rank = 0, .world = 2});
  EXPECT_EQ(order.steps(2), 1u);
  EXPECT_EQ(order.steps(3), 0u);
  EXPECT_EQ(order.steps(1000), 0u);
  EXPECT_EQ(order.samples_in(3, 0), 0u);
}

TEST(Order, a_batch_in_parts_is_the_batch) {
  for (uint32_t world : {1, 3}) {
    Order order(
        {.length = 1000, .batch_size = 300, .shuffle = true, .rank = world - 1, .world = world});
    uint64_t step = order.steps() - 1;
    Indices whole = batch(order, 1, 0, step);
    for (uint64_t first = 0; first < whole.size(); ++first) {
      Indices part(std::min<uint64_t>(70, whole.size() - first));
      order.indices(1, 0, step, first, part);
      ASSERT_TRUE(
          std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
}

TEST(Order, epochs_and_seeds_differ_and_repeat) {
  Order::Options options{.length = 1000, .batch_size = 1000, .shuffle = true, .seed = 1};
  Order order(options);
  EXPECT_EQ(whole_epoch(order, 0), whole_epoch(Order(options), 0));
  EXPECT_NE(whole_epoch(order, 0), whole_epoch(order, 1));
  options.seed = 2;
  EXPECT_NE(whole_epoch(order, 0), whole_epoch(Order(options), 0));
}

TEST(Order, replacements_visit_every_index_and_are_not_the_order_itself) {
  Order order({.length = 500, .batch_size = 10, .shuffle = true, .seed = 1});
  Indices original = whole_epoch(order, 4);
  std::set<uint64_t> visited;
  int same = 0;
  for (uint32_t attempt = 0; attempt < 500; ++attempt) {
    uint64_t index = order.replacement(4, 123, attempt);
    EXPECT_EQ(index, order.replacement(4, 123, attempt));
    EXPECT_EQ(index, order.replacement(4, 123 + attempt, 0)) << "the next of the same permutation";
    visited.insert(index);
    same += index == original[(123 + attempt) % 500];
  }
  EXPECT_EQ(visited.size(), 500u);
  EXPECT_LT(same, 10);
  EXPECT_THROW(Order({.length = 0}).replacement(0, 0, 0), Error);
}

TEST(Order, threads_may_share_it) {
  Order order({.length = 100'000, .batch_size = 100, .shuffle = true});
  Indices expected = whole_epoch(order, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] { EXPECT_EQ(whole_epoch(order, 1), expected); });
  }
  for (std::thread& thread : threads) thread.join();
}

void expect_refused(const Order::Options& options, const std::string& words) {
  try {
    Order order(options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Order, impossible_options_are_refused_in_the_users_words) {
  expect_refused({.length = 1, .batch_size = 0}, "batch_size");
  expect_refused({.length = 1, .rank = 0, .world = 0}, "world");
  expect_refused({.length = 1, .rank = 2, .world = 2}, "shard=(2, 2)");
  expect_refused({.length = (uint64_t{1} << 62) + 1}, "2^62");
  expect_refused({.length = 1, .batch_size = uint64_t{1} << 61, .world = 4}, "batch_size");
}

TEST(Order, rows_that_a_batch_does_not_have_are_refused) {
  Order order({.length = 10, .batch_size = 4});
  Indices rows(3);
  EXPECT_THROW(order.indices(0, 0, 2, 0, rows), Error);
  EXPECT_THROW(order.indices(0, 0, 0, 2, rows), Error);
  EXPECT_THROW(order.indices(0, 0, 9, 0, rows), Error);
  EXPECT_THROW(order.indices(0, 0, 0, ~uint64_t{0}, rows), Error);
}

TEST(Order, the_longest_datasets_work) {
  uint64_t length = uint64_t{1} << 62;
  Order order({.length = length, .batch_size = 256, .shuffle = true});
  EXPECT_EQ(order.steps(), length / 256);
  Indices last = batch(order, 0, 0, order.steps() - 1);
  std::set<uint64_t> different(last.begin(), last.end());
  EXPECT_EQ(different.size(), 256u);
  EXPECT_LT(*different.rbegin(), length);
}

}  // namespace
}  // namespace penstock
