#include "penstock/memory/byte_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace penstock {
namespace {

// Holders that count how often they were granted bytes.
class Holders {
 public:
  Holders(uint64_t total, size_t count) : budget(total), granted(count) {
    for (size_t i = 0; i < count; ++i) add();
  }
  ByteBudget::Holder& operator[](size_t i) { return *holders[i]; }
  void end(size_t i) { holders[i].reset(); }

  ByteBudget budget;
  std::vector<int> granted;

 private:
  void add() {
    const size_t i = holders.size();
    holders.push_back(std::make_unique<ByteBudget::Holder>(budget, [this, i] { ++granted[i]; }));
  }
  std::vector<std::unique_ptr<ByteBudget::Holder>> holders;
};

TEST(ByteBudget, holders_take_all_that_is_there_and_no_more) {
  Holders of(10, 2);
  EXPECT_TRUE(of[0].take(7));
  EXPECT_EQ(of[1].space(), 3u);
  EXPECT_TRUE(of[1].take(3));
  EXPECT_EQ(of.budget.used(), 10u);
  EXPECT_FALSE(of[0].take(1));
  EXPECT_TRUE(of[1].take(0));
  EXPECT_TRUE(of.budget.contended());
  of[0].withdraw();
  EXPECT_FALSE(of.budget.contended());
}

TEST(ByteBudget, without_a_bound_there_is_always_space) {
  Holders of(UINT64_MAX, 2);
  EXPECT_TRUE(of[0].take(uint64_t{1} << 60));
  EXPECT_TRUE(of[1].take(uint64_t{1} << 60));
  EXPECT_FALSE(of.budget.bounded());
}

TEST(ByteBudget, whoever_waits_longest_is_granted_first) {
  Holders of(10, 4);
  EXPECT_TRUE(of[0].take(10));
  EXPECT_FALSE(of[3].take(2));
  EXPECT_FALSE(of[1].take(2));
  EXPECT_FALSE(of[2].take(2));
  of[0].give_back(2);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 0, 0, 1}));
  of[0].give_back(3);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 1, 0, 1}));
  of[0].give_back(5);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 1, 1, 1}));
  // The bytes are theirs, whenever they come for them.
  EXPECT_EQ(of.budget.used(), 6u);
  for (size_t i = 1; i < 4; ++i) EXPECT_TRUE(of[i].take(2));
  EXPECT_EQ(of.budget.used(), 6u);
}

TEST(ByteBudget, nobody_overtakes_a_holder_that_waits_for_more) {
  Holders of(10, 3);
  EXPECT_TRUE(of[0].take(8));
  EXPECT_FALSE(of[1].take(6));
  EXPECT_FALSE(of[2].take(1)) << "there are 2 bytes, for the holder that came first";
  of[0].give_back(3);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 0, 0}));
  of[0].give_back(1);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 1, 0}));
  of[0].give_back(1);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 1, 1}));
}

TEST(ByteBudget, a_request_that_changes_keeps_its_place) {
  Holders of(10, 3);
  EXPECT_TRUE(of[0].take(10));
  EXPECT_FALSE(of[1].take(2));
  EXPECT_FALSE(of[2].take(2));
  EXPECT_FALSE(of[1].take(4));
  of[0].give_back(2);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 0, 0}));
  of[0].give_back(2);
  EXPECT_EQ(of.granted, (std::vector<int>{0, 1, 0}));
}

TEST(ByteBudget, a_minimum_is_reserved_and_always_granted) {
  Holders of(10, 2);
  of[0].set_minimum(4);
  EXPECT_EQ(of.budget.used(), 4u);
  EXPECT_EQ(of[1].space(), 6u);
  EXPECT_TRUE(of[1].take(6));
  EXPECT_FALSE(of[1].take(1));
  EXPECT_TRUE(of[0].take(3)) << "although another holder waits";
  EXPECT_TRUE(of[0].take(1));
  EXPECT_FALSE(of[0].take(1));
  EXPECT_EQ(of.budget.used(), 10u);
}

TEST(ByteBudget, minimums_hold_however_small_the_budget_is) {
  Holders of(1, 3);
  for (size_t i = 0; i < 3; ++i) {
    of[i].set_minimum(5);
    EXPECT_TRUE(of[i].take(5));
    EXPECT_FALSE(of[i].take(1));
  }
  EXPECT_EQ(of.budget.used(), 15u);
}

TEST(ByteBudget, what_exists_counts_and_is_made_up_for_before_anything_is_granted) {
  Holders of(10, 3);
  EXPECT_TRUE(of[0].take(8));
  of[1].add(6);
  EXPECT_FALSE(of[2].take(1));
  of[0].give_back(4);
  EXPECT_EQ(of.granted[2], 0);
  of[1].give_back(1);
  EXPECT_EQ(of.granted[2], 1);
}

TEST(ByteBudget, a_request_that_can_never_be_met_holds_up_nobody) {
  Holders of(10, 3);
  of[2].set_minimum(2);
  EXPECT_TRUE(of[1].take(6));
  EXPECT_FALSE(of[0].take(9)) << "8 bytes at most, beside the minimum";
  EXPECT_TRUE(of[1].take(2));
  EXPECT_FALSE(of[1].take(1));
  of[1].give_back(1);
  EXPECT_EQ(of.granted[0], 0);
  EXPECT_TRUE(of[1].take(1));
  // It can be met once the minimum has ended.
  of[1].give_back(8);
  of[2].set_minimum(0);
  EXPECT_EQ(of.granted[0], 1);
}

TEST(ByteBudget, a_holder_that_gives_back_may_be_the_next_itself) {
  Holders of(10, 2);
  EXPECT_TRUE(of[0].take(10));
  EXPECT_FALSE(of[0].take(4));
  of[0].give_back(4);
  EXPECT_EQ(of.granted[0], 0) << "it sees by itself";
  EXPECT_FALSE(of[1].take(1));
  EXPECT_TRUE(of[0].take(4));
}

TEST(ByteBudget, bytes_are_given_back_in_any_order) {
  Holders of(6, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(of[i].take(2));
  EXPECT_FALSE(of[1].take(2));
  of[2].give_back(2);
  of[0].give_back(2);
  EXPECT_TRUE(of[1].take(2));
  EXPECT_TRUE(of[2].take(2));
  of[1].give_back(4);
  of[2].give_back(2);
  EXPECT_EQ(of.budget.used(), 0u);
}

TEST(ByteBudget, what_is_not_wanted_any_more_goes_to_the_next) {
  Holders of(4, 3);
  EXPECT_TRUE(of[0].take(4));
  EXPECT_FALSE(of[1].take(4));
  EXPECT_FALSE(of[2].take(4));
  of[0].give_back(4);
  EXPECT_EQ(of.granted[1], 1);
  of[1].withdraw();
  EXPECT_EQ(of.granted[2], 1);
  EXPECT_TRUE(of[2].take(4));
}

TEST(ByteBudget, more_than_was_granted_is_waited_for_again) {
  Holders of(10, 2);
  EXPECT_TRUE(of[0].take(10));
  EXPECT_FALSE(of[1].take(2));
  of[0].give_back(2);
  EXPECT_EQ(of.granted[1], 1);
  EXPECT_FALSE(of[1].take(5));
  of[0].give_back(3);
  EXPECT_EQ(of.granted[1], 2);
  EXPECT_TRUE(of[1].take(5));
  EXPECT_EQ(of.budget.used(), 10u);
}

TEST(ByteBudget, a_holder_that_ends_while_it_waits_leaves_the_queue) {
  Holders of(4, 3);
  EXPECT_TRUE(of[0].take(4));
  EXPECT_FALSE(of[1].take(4));
  EXPECT_FALSE(of[2].take(3));
  of.end(1);
  of[0].give_back(3);
  EXPECT_EQ(of.granted[2], 1);
  of.end(2);
  EXPECT_EQ(of.budget.used(), 1u);
  of.end(0);
  EXPECT_EQ(of.budget.used(), 0u);
}

TEST(ByteBudget, a_holder_that_ends_gives_to_those_that_wait) {
  Holders of(4, 2);
  EXPECT_TRUE(of[0].take(4));
  EXPECT_FALSE(of[1].take(4));
  of.end(0);
  EXPECT_EQ(of.granted[1], 1);
}

// Each thread's holder takes and gives back, waits when there is nothing, and ends in mid-flight.
TEST(ByteBudget, threads_never_exceed_it_and_none_is_forgotten) {
  constexpr uint64_t kTotal = 1000, kMinimum = 20;
  constexpr int kThreads = 4, kRounds = 3000;
  ByteBudget budget(kTotal);
  std::atomic<uint64_t> held{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int life = 0; life < 3; ++life) {
        std::mutex mutex;
        std::condition_variable granted;
        ByteBudget::Holder holder(budget, [&] {
          { const std::lock_guard lock(mutex); }
          granted.notify_one();
        });
        holder.set_minimum(kMinimum);
        std::deque<uint64_t> mine;
        for (int round = 0; round < kRounds; ++round) {
          const uint64_t bytes = 1 + random() % 300;
          bool taken;
          {
            std::unique_lock lock(mutex);
            taken = holder.take(bytes);
            // Whoever holds nothing may wait: the others give back before they wait.
            if (!taken && mine.empty()) {
              granted.wait(lock, [&] { return holder.take(bytes); });
              taken = true;
            }
          }
          if (taken) {
            mine.push_back(bytes);
            const uint64_t now = held += bytes;
            for (uint64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
            }
          }
          while (!mine.empty() && (!taken || random() % 2 == 0)) {
            held -= mine.front();
            holder.give_back(mine.front());
            mine.pop_front();
          }
        }
        while (!mine.empty()) {
          held -= mine.front();
          mine.pop_front();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_LE(most, kTotal);
  EXPECT_FALSE(budget.contended());
}

}  // namespace
}  // namespace penstock
