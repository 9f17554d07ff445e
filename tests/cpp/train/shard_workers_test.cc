// Waits of workers: rounds, bounds and leases, ready workers, workers that left.
#include <atomic>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/train/server/shard.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

namespace penstock::train {
namespace {

using testing::Full;
using testing::message_of;
using testing::OneShard;

constexpr double kNever = 1e6;

void wait_until_held(const Shard& shard, uint64_t worker) {
  for (;; std::this_thread::yield()) {
    const auto stats = nlohmann::json::parse(shard.stats());
    for (const auto& each : stats["workers"]) {
      if (each["worker"] == worker && each["waiting"] == true) return;
    }
  }
}

TEST(ShardWorkers, synchronous_rounds_are_averages_that_repeat_bit_for_bit) {
  auto run = [](bool other_way) {
    OneShard one({.staleness = 0, .lease_s = kNever, .workers = 3}, 1);
    std::vector<std::thread> workers;
    for (uint64_t i = 0; i < 3; ++i) {
      const uint64_t id = other_way ? 30 - i : 10 + i;
      workers.emplace_back([&one, id, i] {
        one.shard->join({id, "worker " + std::to_string(i), ""});
        one.shard->ready(id);
        for (uint64_t sequence = 1; sequence <= 20; ++sequence) {
          const Full full(id, sequence, 0.1f * static_cast<float>(i + sequence));
          EXPECT_EQ(one.shard->push(full.push).version, sequence);
        }
      });
    }
    for (auto& worker : workers) worker.join();
    EXPECT_EQ(one.memory->current().version, 20u);
    return one.weight();
  };
  const float first = run(false);
  EXPECT_EQ(run(true), first);
  double expected = 0;  // one large batch
  for (int sequence = 1; sequence <= 20; ++sequence) expected -= 0.1 * (sequence + 1);
  EXPECT_NEAR(first, expected, 1e-4);
}

TEST(ShardWorkers, no_worker_is_further_ahead_of_the_slowest_than_the_bound) {
  constexpr uint32_t kBound = 2;
  OneShard one({.staleness = kBound, .lease_s = kNever});
  one.shard->join({1, "slow", ""});
  one.shard->join({2, "fast", ""});
  std::atomic<uint64_t> fast{0};
  std::thread worker([&] {
    for (uint64_t sequence = 1; sequence <= 12; ++sequence) {
      one.shard->push(Full(2, sequence, -1).push);
      fast.store(sequence);
    }
  });
  for (uint64_t sequence = 1; sequence <= 10; ++sequence) {
    // The fast worker reaches its bound: kBound + 1 pushes beyond the slowest.
    while (fast.load() < sequence + kBound) std::this_thread::yield();
    EXPECT_EQ(fast.load(), sequence + kBound);
    one.shard->push(Full(1, sequence, -1).push);
  }
  worker.join();
  EXPECT_TRUE(one.all_weights_are(22));
}

TEST(ShardWorkers, others_wait_for_a_silent_worker_no_longer_than_its_lease) {
  for (uint32_t bound : {0u, 1u}) {
    OneShard one({.staleness = bound, .lease_s = 0.3});
    one.shard->join({1, "silent", ""});
    one.shard->join({2, "busy", ""});
    for (uint64_t sequence = 1; sequence <= 5; ++sequence) {
      one.shard->push(Full(2, sequence, -1).push);  // the test: it returns
    }
    EXPECT_EQ(one.memory->current().version, 5u);
    // The worker gets that answer, and takes part again.
    EXPECT_EQ(one.shard->push(Full(1, 1, -1).push).outcome, Outcome::kLapsed);
    EXPECT_EQ(one.shard->push(Full(1, 1, -1).push).outcome, Outcome::kLapsed) << "asked again";
    EXPECT_TRUE(one.all_weights_are(5));
    std::thread other([&] { one.shard->push(Full(2, 6, -1).push); });
    EXPECT_EQ(one.shard->push(Full(1, 2, -1).push).outcome, Outcome::kApplied);
    other.join();
    EXPECT_EQ(one.weight(), bound == 0 ? 6 : 7);
  }
}

TEST(ShardWorkers, a_worker_that_leaves_is_not_waited_for) {
  OneShard one({.staleness = 0, .lease_s = kNever});
  one.shard->join({1, "a", ""});
  one.shard->join({2, "b", ""});
  std::thread waiting([&] { one.shard->push(Full(1, 1, -1).push); });
  one.shard->leave(2);
  waiting.join();
  EXPECT_TRUE(one.all_weights_are(1));
  EXPECT_NE(message_of(Code::kNotFound, [&] { one.shard->push(Full(2, 1, -1).push); }), "");
}

TEST(ShardWorkers, the_same_push_over_a_second_connection_waits_with_the_first) {
  OneShard one({.staleness = 0, .lease_s = kNever});
  one.shard->join({1, "a", ""});
  one.shard->join({2, "b", ""});
  std::vector<std::thread> both;
  for (int i = 0; i < 2; ++i) {
    both.emplace_back(
        [&] { EXPECT_EQ(one.shard->push(Full(1, 1, -1).push).outcome, Outcome::kApplied); });
  }
  one.shard->push(Full(2, 1, -1).push);
  for (auto& each : both) each.join();
  EXPECT_TRUE(one.all_weights_are(1));
  EXPECT_EQ(one.memory->current().version, 1u);
}

TEST(ShardWorkers, a_held_push_is_dropped_when_its_worker_says_hello_again) {
  for (const uint32_t staleness : {0u, 1u}) {
    OneShard one({.staleness = staleness, .lease_s = kNever});
    one.shard->join({1, "a", ""});
    one.shard->join({2, "b", ""});
    uint64_t sequence = 0;
    float sum = 0;
    // With a bound, until the worker is as far ahead as allowed.
    for (uint32_t i = 0; i < 2 * staleness; ++i, ++sum)
      one.shard->push(Full(1, ++sequence, -1).push);
    std::atomic<bool> given_up = false;
    std::thread held([&] {
      const Full full(1, sequence + 1, -100);
      message_of(Code::kClosed, [&] { one.shard->push(full.push); });
      given_up = true;
    });
    wait_until_held(*one.shard, 1);
    EXPECT_FALSE(given_up);
    EXPECT_EQ(one.shard->join({1, "a", ""}).sequence, sequence);
    held.join();
    // Its next push has the next number.
    std::thread next([&] { one.shard->push(Full(1, sequence + 2, -2).push); });
    for (uint32_t i = 0; i <= 2 * staleness; ++i) one.shard->push(Full(2, i + 1, 0).push);
    next.join();
    EXPECT_TRUE(one.all_weights_are(sum + (staleness == 0 ? 1 : 2))) << one.weight();
  }
}

TEST(ShardWorkers, a_worker_that_pulled_after_its_lease_expired_takes_part_again) {
  for (const bool pulls : {false, true}) {
    OneShard one({.staleness = 1, .lease_s = 0.05});
    const uint64_t begun = now_ns();
    one.shard->join({1, "quick", ""});
    one.shard->join({2, "slow", ""});
    for (uint64_t i = 1; i <= 4; ++i) one.shard->push(Full(1, i, -1).push);  // waits for the lease
    Full late(2, 1, -1);
    // As on one host, where the shard does not see pulls.
    late.push.pulls = 1;
    late.push.pulled_ns = pulls ? now_ns() : begun;
    EXPECT_EQ(one.shard->push(late.push).outcome, pulls ? Outcome::kApplied : Outcome::kLapsed);
    EXPECT_TRUE(one.all_weights_are(pulls ? 5 : 4));
  }
}

TEST(ShardWorkers, a_worker_that_pulled_long_ago_does_not_take_part_again) {
  OneShard one({.staleness = 1, .lease_s = 0.05});
  one.shard->join({1, "quick", ""});
  one.shard->join({2, "slow", ""});
  uint64_t sequence = 0;
  auto go_on = [&](int pushes) {
    for (int i = 0; i < pushes; ++i) one.shard->push(Full(1, ++sequence, -1).push);
  };
  go_on(4);  // waits for the lease
  const uint64_t pulled = one.memory->current().version, when = now_ns();
  for (int i = 0; i < 60; ++i) {  // for several leases
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    go_on(1);
  }
  ASSERT_GT(one.memory->current().version, pulled);
  Full late(2, 1, -1);
  late.push.base = pulled;
  late.push.pulls = 1;
  late.push.pulled_ns = when;
  EXPECT_EQ(one.shard->push(late.push).outcome, Outcome::kLapsed);
}

// As after an evaluation during which all workers pause: the first push makes a version that the
// others have not pulled, but they have pulled after their leases expired.
TEST(ShardWorkers, all_workers_that_pulled_after_their_leases_expired_take_part_again) {
  OneShard one({.staleness = 100, .lease_s = 0.5});
  for (uint64_t worker : {1, 2, 3}) one.shard->join({worker, "", ""});
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const uint64_t pulled = now_ns();
  for (uint64_t worker : {1, 2, 3}) {
    Full late(worker, 1, -1);
    late.push.pulls = 1;
    late.push.pulled_ns = pulled;
    EXPECT_EQ(one.shard->push(late.push).outcome, Outcome::kApplied);
  }
}

TEST(ShardWorkers, a_worker_that_leaves_while_its_push_is_dropped_is_removed) {
  OneShard one({.staleness = 0, .lease_s = kNever});
  one.shard->join({1, "a", ""});
  one.shard->join({2, "b", ""});
  std::thread held([&] {
    const Full full(1, 1, -100);
    message_of(Code::kClosed, [&] { one.shard->push(full.push); });
  });
  wait_until_held(*one.shard, 1);
  one.shard->leave(1);
  EXPECT_EQ(one.shard->push(Full(2, 1, -1).push).outcome, Outcome::kApplied);  // does not wait
  held.join();
  EXPECT_TRUE(one.all_weights_are(1));
  EXPECT_EQ(one.shard->join({1, "a", ""}).sequence, 0u);
}

TEST(ShardWorkers, closing_ends_waits) {
  OneShard one({.lease_s = kNever, .workers = 2});
  one.shard->join({1, "a", ""});
  one.shard->ready(1);
  std::thread waiting(
      [&] { message_of(Code::kClosed, [&] { one.shard->push(Full(1, 1, -1).push); }); });
  wait_until_held(*one.shard, 1);
  one.shard->close();
  waiting.join();
  EXPECT_TRUE(one.all_weights_are(0));
}

TEST(ShardWorkers, only_the_hello_that_made_a_worker_can_be_taken_back) {
  OneShard one;
  const auto first = one.shard->join({7, "a", ""});
  ASSERT_TRUE(first.is_new);
  EXPECT_FALSE(one.shard->join({7, "a", ""}).is_new);
  one.shard->undo_join(7, first.hello);  // there was another hello since
  one.shard->join({8, "b", ""});
  one.shard->push(Full(7, 1, -1).push);
  one.shard->leave(8);
  const auto again = one.shard->join({8, "b", ""});
  EXPECT_NE(again.hello, first.hello);
  one.shard->undo_join(8, again.hello);
  message_of(Code::kNotFound, [&] { one.shard->push(Full(8, 1, -1).push); });
  EXPECT_EQ(one.shard->join({7, "a", ""}).sequence, 1u);
}

TEST(ShardWorkers, a_join_is_undone_even_after_another_connection_hung_up) {
  OneShard one({.staleness = 0, .lease_s = kNever});
  const auto made = one.shard->join({7, "", ""});
  one.shard->cancel_push(7);  // its second hello, after which it hung up
  one.shard->undo_join(7, made.hello);
  one.shard->join({8, "", ""});
  EXPECT_EQ(one.shard->push(Full(8, 1, -1).push).outcome, Outcome::kApplied);  // does not wait
}

TEST(ShardWorkers, a_reconnect_after_the_start_drops_no_other_workers_push) {
  OneShard one({.staleness = 0, .lease_s = kNever, .workers = 2});
  for (const uint64_t id : {7, 8}) {
    one.shard->join({id, "", ""});
    one.shard->ready(id);
  }
  std::thread dead([&] {
    Full full(7, 1, -1);
    full.push.is_connected = [] { return false; };
    EXPECT_EQ(one.shard->push(full.push).outcome, Outcome::kApplied);
  });
  wait_until_held(*one.shard, 7);
  one.shard->join({8, "", ""});
  one.shard->ready(8);
  EXPECT_EQ(one.shard->push(Full(8, 1, -1).push).outcome, Outcome::kApplied);
  dead.join();
  EXPECT_TRUE(one.all_weights_are(1));
}

TEST(ShardWorkers, the_work_begins_when_so_many_are_ready_and_not_when_they_have_only_joined) {
  for (const uint32_t staleness : {0u, 5u}) {
    OneShard one({.staleness = staleness, .lease_s = kNever, .workers = 2});
    one.shard->join({7, "a", ""});
    one.shard->ready(7);
    std::atomic<bool> applied = false;
    std::thread waiting([&] {
      EXPECT_EQ(one.shard->push(Full(7, 1, -1).push).outcome, Outcome::kApplied);
      applied = true;
    });
    wait_until_held(*one.shard, 7);
    one.shard->undo_join(8, one.shard->join({8, "gives up", ""}).hello);
    one.shard->join({9, "gives up, and says so", ""});
    one.shard->leave(9);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(applied);
    EXPECT_TRUE(one.all_weights_are(0));
    one.shard->join({10, "b", ""});
    one.shard->ready(10);
    one.shard->leave(10);
    waiting.join();
    EXPECT_TRUE(one.all_weights_are(1));
  }
}

TEST(ShardWorkers, a_ready_worker_counts_for_the_start_even_if_it_leaves) {
  OneShard one({.lease_s = kNever, .workers = 2, .non_finite = NonFinite::kSkip});
  for (const uint64_t id : {7, 8}) {
    one.shard->join({id, "", ""});
    one.shard->ready(id);
  }
  Full bad(7, 1, -1);
  bad.push.squares = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(one.shard->push(bad.push).outcome, Outcome::kSkipped);
  one.shard->leave(8);
  one.shard->undo_join(9, one.shard->join({9, "", ""}).hello);
  EXPECT_EQ(one.shard->push(Full(7, 2, -1).push).outcome, Outcome::kApplied);  // does not wait
}

TEST(ShardWorkers, a_worker_that_hung_up_before_the_start_counts_when_it_is_ready_again) {
  OneShard one({.lease_s = kNever, .workers = 2});
  const uint64_t hello = one.shard->join({7, "", ""}).hello;
  one.shard->ready(7);
  one.shard->on_disconnect(7, hello);
  one.shard->join({8, "", ""});
  one.shard->ready(8);
  std::thread waiting(
      [&] { EXPECT_EQ(one.shard->push(Full(8, 1, -1).push).outcome, Outcome::kApplied); });
  wait_until_held(*one.shard, 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(one.all_weights_are(0));
  one.shard->join({7, "", ""});
  one.shard->ready(7);
  one.shard->on_disconnect(7, hello);  // the first connection, late
  waiting.join();
  EXPECT_TRUE(one.all_weights_are(1));
}

TEST(ShardWorkers, a_worker_that_died_while_its_push_was_held_is_not_ready) {
  OneShard one({.lease_s = kNever, .workers = 2});
  for (const uint64_t id : {7, 8}) one.shard->join({id, "", ""});
  one.shard->ready(7);
  std::atomic<bool> lives = true;
  std::thread dying([&] {
    Full full(7, 1, -1);
    full.push.is_connected = [&] { return lives.load(); };
    message_of(Code::kClosed, [&] { one.shard->push(full.push); });
  });
  wait_until_held(*one.shard, 7);
  lives = false;
  one.shard->ready(8);
  dying.join();
  std::thread waiting(
      [&] { EXPECT_EQ(one.shard->push(Full(8, 1, -1).push).outcome, Outcome::kApplied); });
  wait_until_held(*one.shard, 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(one.all_weights_are(0));
  one.shard->join({9, "", ""});
  one.shard->ready(9);
  waiting.join();
  EXPECT_TRUE(one.all_weights_are(1));
}

TEST(ShardWorkers, a_worker_that_hung_up_is_not_ready_after_another_hello) {
  OneShard one({.lease_s = kNever, .workers = 2});
  const uint64_t hello = one.shard->join({7, "", ""}).hello;
  one.shard->ready(7);
  one.shard->cancel_push(7);
  one.shard->on_disconnect(7, hello);
  one.shard->join({8, "", ""});
  one.shard->ready(8);
  EXPECT_FALSE(one.memory->begun());
}

TEST(ShardWorkers, the_work_has_begun_also_for_the_process_that_comes_next) {
  const ServerMode mode{.lease_s = kNever, .workers = 2};
  OneShard one(mode);
  for (const uint64_t id : {7, 8}) {
    one.shard->join({id, "", ""});
    one.shard->ready(id);
  }
  one.shard->leave(8);
  one.start_again(mode);
  one.shard->join({7, "", ""});
  one.shard->ready(7);
  EXPECT_EQ(one.shard->push(Full(7, 1, -1).push).outcome, Outcome::kApplied);  // does not wait
}

TEST(ShardWorkers, workers_beyond_the_limit_take_the_rows_of_silent_workers) {
  OneShard one({.lease_s = kNever});
  for (uint64_t id = 1; id <= kMaxWorkers; ++id) one.shard->join({id, "", ""});
  message_of(Code::kOutOfMemory, [&] { one.shard->join({5000, "", ""}); });
  one.shard->leave(17);
  one.shard->join({5000, "", ""});
  OneShard brief({.lease_s = 1e-9});
  for (uint64_t id = 1; id <= kMaxWorkers + 10; ++id) brief.shard->join({id, "", ""});
}

}  // namespace
}  // namespace penstock::train
