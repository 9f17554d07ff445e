// The contracts of the C++ Loader: order, exactly once, same results anywhere, place, epochs.
#include "penstock/pipeline/api/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "datasets.h"
#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/memory/lease.h"
#include "penstock/pipeline/scheduler/order.h"

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

TEST(Loader, every_index_comes_exactly_once_and_in_order) {
  for (uint32_t workers : kWorkers) {
    for (uint64_t length : {0, 1, 9, 10, 11, 64, 65, 203}) {
      Loader feed(NumberedSamples(length), {.batch_size = 10, .workers = workers});
      EXPECT_EQ(feed.size(), (length + 9) / 10);
      for (int epoch = 0; epoch < 3; ++epoch) {
        EXPECT_EQ(flat(take_epoch(feed)), iota(static_cast<int64_t>(length)));
      }
      EXPECT_EQ(feed.stats().delivered, 3 * feed.size());
      EXPECT_EQ(feed.stats().samples, 3 * length);
    }
  }
}

TEST(Loader, batches_and_draws_are_equal_for_any_number_of_workers) {
  Batches expected, draws;
  for (uint32_t workers : kWorkers) {
    Loader feed(NumberedSamples(203),
                {.batch_size = 16, .shuffle = true, .seed = 7, .workers = workers});
    Batches order, drawn;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& batch : feed.epoch()) {
        order.push_back(numbers(batch));
        drawn.push_back(numbers(batch, "draw"));
        auto x = batch.at("x").as_span<const float>();
        for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], float(order.back()[i / 3]));
      }
    }
    if (workers == 0) {
      expected = order;
      draws = drawn;
    }
    EXPECT_EQ(order, expected) << workers;
    EXPECT_EQ(drawn, draws) << workers;
  }
  EXPECT_EQ(expected.size(), 39u);
  std::vector<int64_t> first = flat({expected.begin(), expected.begin() + 13});
  EXPECT_NE(first, flat({expected.begin() + 13, expected.begin() + 26}));
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, iota(203));
}

// The order is that of Order, which Python's Loader uses, too; a draw has the key (seed, epoch,
// index).
TEST(Loader, order_and_draws_are_those_of_the_addresses) {
  Loader feed(NumberedSamples(50), {.batch_size = 8, .shuffle = true, .seed = 11, .workers = 2});
  Order order({.length = 50, .batch_size = 8, .shuffle = true, .seed = 11});
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    uint64_t step = 0;
    for (auto& batch : feed.epoch()) {
      std::vector<uint64_t> indices(order.samples_in(0, step));
      order.indices(epoch, 0, step++, 0, indices);
      EXPECT_EQ(numbers(batch), std::vector<int64_t>(indices.begin(), indices.end()));
      for (size_t row = 0; row < indices.size(); ++row) {
        RandomStream rng({11, epoch, indices[row], 0});
        EXPECT_EQ(numbers(batch, "draw")[row], int64_t(rng.next_u32()));
      }
    }
  }
}

TEST(Loader, a_batch_size_far_above_the_length_costs_no_memory) {
  Loader feed(NumberedSamples(5), {.batch_size = 1u << 31, .workers = 2});
  EXPECT_EQ(take_epoch(feed), (Batches{{0, 1, 2, 3, 4}}));
}

TEST(Loader, an_item_can_be_a_whole_batch) {
  for (uint32_t workers : kWorkers) {
    Made items(7, [](uint64_t index, SampleContext& context) {
      EXPECT_EQ(context.index(), index);
      Tensor x = testing::filled({int64_t(index) + 1, 2}, float(index));
      return Example{{"x", x}, {"index", testing::scalar(int64_t(index))}};
    });
    Loader feed(items, {.workers = workers});
    int64_t index = 0;
    for (auto& batch : feed.epoch()) {
      EXPECT_EQ(batch.at("index").as_span<const int64_t>()[0], index);
      EXPECT_EQ(batch.at("x").shape(), (Shape{++index, 2}));
    }
    EXPECT_EQ(index, 7);
  }
}

TEST(Loader, an_item_that_nobody_else_holds_is_not_copied) {
  Tensor persistent = testing::filled({1000}, 1);
  for (uint32_t workers : {0, 2}) {
    const std::byte* made = nullptr;
    Made items(3, [&](uint64_t index, SampleContext& context) {
      if (index != 1) return Example{{"x", persistent}};
      Tensor fresh = testing::filled({1000}, 2);
      if (context.epoch() == 0) made = fresh.data();
      return Example{{"x", fresh}};
    });
    Loader feed(items, {.workers = workers});
    std::vector<Example> kept;
    for (auto& batch : feed.epoch()) kept.push_back(batch);
    EXPECT_EQ(kept[1].at("x").data(), made);
    EXPECT_NE(kept[0].at("x").data(), persistent.data());
    EXPECT_TRUE(bit_equal(kept[0].at("x"), persistent));
    feed.close();
    WorkerFigures made_so_far = feed.stats().workers;  // prefetching crosses the epoch's end
    EXPECT_GE(made_so_far.copies_avoided, 1u);
    EXPECT_GE(made_so_far.copies[size_t(CopyReason::kReferenced)], 2u);
    EXPECT_EQ(made_so_far.tickets,
              made_so_far.copies_avoided + made_so_far.copies[size_t(CopyReason::kReferenced)]);
  }
}

TEST(Loader, ranks_share_an_epoch) {
  for (bool drop : {false, true}) {
    std::map<int64_t, int> count;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Loader feed(
          NumberedSamples(100),
          {.batch_size = 8, .shuffle = true, .drop_last = drop, .workers = 2, .shard = {rank, 3}});
      EXPECT_EQ(feed.size(), drop ? 4u : 5u);
      for (int64_t index : flat(take_epoch(feed))) ++count[index];
    }
    EXPECT_EQ(count.size(), drop ? 96u : 100u);
    for (auto [index, times] : count) EXPECT_LE(times, drop ? 1 : 2) << index;
  }
}

TEST(Loader, an_unordered_feed_gives_the_same_batches_in_some_order) {
  for (uint32_t workers : kWorkers) {
    Loader feed(NumberedSamples(100), {.batch_size = 7, .workers = workers, .ordered = false});
    for (int epoch = 0; epoch < 3; ++epoch) {
      Batches all = take_epoch(feed);
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all.size(), 15u);
      EXPECT_EQ(flat(all), iota(100));
    }
  }
}

TEST(Loader, a_batch_lives_as_long_as_it_is_held) {
  std::vector<Example> kept;
  {
    Loader feed(NumberedSamples(400), {.batch_size = 10, .workers = 2, .max_queue_size = 2});
    for (auto& batch : feed.epoch()) kept.push_back(batch);
  }
  EXPECT_EQ(kept.size(), 40u);
  int64_t next = 0;
  for (const Example& batch : kept) {
    for (int64_t index : numbers(batch)) EXPECT_EQ(index, next++);
  }
  kept.clear();
  EXPECT_EQ(Lease::outstanding(), 0u);
}

TEST(Loader, memory_is_used_again) {
  Made images(64 * 50, [](uint64_t index, SampleContext&) {
    return Example{{"x", testing::filled({64, 64}, float(index))}};
  });
  Loader feed(images, {.batch_size = 64, .workers = 2, .max_queue_size = 2});
  std::set<const std::byte*> places;
  for (auto& batch : feed.epoch()) places.insert(batch.at("x").data());
  EXPECT_LE(places.size(), 10u);
}

// ---- iterating ----------------------------------------------------------------------------------

TEST(Loader, an_epoch_left_in_the_middle_is_followed_by_the_next_one) {
  for (uint32_t workers : kWorkers) {
    Loader feed(NumberedSamples(40), {.batch_size = 4, .shuffle = true, .workers = workers});
    Loader other(NumberedSamples(40), {.batch_size = 4, .shuffle = true, .workers = 0});
    Batches first = take_epoch(other), second = take_epoch(other);
    int taken = 0;
    for (auto& batch : feed.epoch()) {
      EXPECT_EQ(numbers(batch), first[size_t(taken)]);
      if (++taken == 3) break;
    }
    EXPECT_EQ(feed.state().epoch, 0u);
    EXPECT_EQ(feed.state().batches, 3u);
    EXPECT_EQ(take_epoch(feed), second);
    EXPECT_EQ(feed.state().epoch, 2u);
  }
}

TEST(Loader, steps_go_across_epochs_and_the_next_range_finishes_the_epoch) {
  Loader feed(NumberedSamples(20), {.batch_size = 4, .workers = 2});
  Batches taken;
  for (auto& batch : feed.steps(8)) taken.push_back(numbers(batch));
  EXPECT_EQ(taken.size(), 8u);
  EXPECT_EQ(flat({taken.begin() + 5, taken.end()}), iota(12));
  Batches rest = take_epoch(feed);
  EXPECT_EQ(flat(rest), (std::vector<int64_t>{12, 13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(feed.state().epoch, 2u);
  EXPECT_EQ(flat(take_epoch(feed)), iota(20));
}

TEST(Loader, next_ends_each_epoch_once) {
  Loader feed(NumberedSamples(6), {.batch_size = 2, .workers = 1});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int64_t i = 0; i < 6; i += 2) {
      auto batch = feed.next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(numbers(*batch), (std::vector<int64_t>{i, i + 1}));
    }
    EXPECT_FALSE(feed.next());
  }
}

TEST(Loader, an_older_range_is_an_error_once_another_was_begun) {
  Loader feed(NumberedSamples(20), {.batch_size = 2, .workers = 1});
  auto old = feed.epoch();
  auto it = old.begin();
  auto fresh = feed.epoch();
  EXPECT_EQ(flat({numbers(*fresh.begin())}), (std::vector<int64_t>{0, 1}));
  EXPECT_THROW(++it, Error);
  for (auto left = fresh.begin(); left != fresh.end(); ++left) EXPECT_EQ(left->at("x").dim(0), 2);
  EXPECT_EQ(feed.stats().delivered, 11u);
}

TEST(Loader, a_range_that_gave_everything_stays_over) {
  Loader feed(NumberedSamples(4), {.batch_size = 2, .workers = 1});
  auto old = feed.epoch();
  auto it = ++old.begin();  // the last batch; its end was not requested
  auto fresh = feed.epoch();
  EXPECT_EQ(flat({numbers(*fresh.begin())}), (std::vector<int64_t>{0, 1}));
  ++it;
  EXPECT_TRUE(it == old.end());
}

TEST(Loader, steps_over_an_empty_dataset_are_an_error) {
  Loader feed(NumberedSamples(0), {.batch_size = 2, .workers = 1});
  EXPECT_EQ(take_epoch(feed).size(), 0u);
  EXPECT_THROW(for ([[maybe_unused]] auto& batch : feed.steps(1)){}, Error);
}

// ---- epoch hooks --------------------------------------------------------------------------------

class Hooked {
 public:
  uint64_t size() const { return size_; }
  Example get(uint64_t index, SampleContext&) {
    ++inside_;
    Example item{{"index", testing::scalar(int64_t(index) + 1000 * int64_t(generation_))}};
    --inside_;
    return item;
  }
  void on_epoch_begin(uint64_t epoch) {
    EXPECT_EQ(inside_.load(), 0);
    log_ += "b" + std::to_string(epoch);
  }
  void on_epoch_end() {
    EXPECT_EQ(inside_.load(), 0);
    ++generation_;
    size_ += 3;
    log_ += "e";
  }
  uint64_t size_ = 8;
  int generation_ = 0;
  std::string log_;
  std::atomic<int> inside_{0};
};

TEST(Loader, hooks_run_between_epochs_and_what_they_change_counts) {
  for (uint32_t workers : kWorkers) {
    auto dataset = std::make_shared<Hooked>();
    Loader feed(dataset, {.batch_size = 3, .workers = workers});
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> expected = iota(8 + 3 * epoch);
      for (int64_t& index : expected) index += 1000 * epoch;
      EXPECT_EQ(flat(take_epoch(feed)), expected);
    }
    EXPECT_EQ(dataset->log_, "b0eb1eb2eb3e");
  }
}

TEST(Loader, hooks_wait_for_the_workers_of_an_epoch_that_was_left) {
  auto dataset = std::make_shared<Hooked>();
  Loader feed(dataset, {.batch_size = 1, .workers = 4});
  for (int round = 0; round < 20; ++round) {
    for ([[maybe_unused]] auto& batch : feed.epoch()) break;
  }
  EXPECT_EQ(dataset->generation_, 19);
}

// ---- looking ------------------------------------------------------------------------------------

TEST(Loader, a_report_is_written) {
  Loader feed(NumberedSamples(100), {.batch_size = 10, .workers = 2});
  take_epoch(feed);
  auto path = std::filesystem::temp_directory_path() /
              ("penstock_report_" + std::to_string(::getpid()) + ".html");
  feed.report(path.string());
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("penstock::testing::NumberedSamples"), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_THROW(feed.report("/no/such/folder/report.html"), Error);
  EXPECT_EQ(feed.snapshot().workers.size(), 2u);
}

TEST(Loader, options_that_cannot_be_are_refused) {
  EXPECT_THROW(Loader(NumberedSamples(1), {.workers = 257}), Error);
  EXPECT_THROW(Loader(NumberedSamples(1), {.max_queue_size = 0}), Error);
  EXPECT_THROW(Loader(NumberedSamples(1), {.shard = {1, 1}}), Error);
}

}  // namespace
}  // namespace penstock
