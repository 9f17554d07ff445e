#include "penstock/train/batcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/observe/latency_histogram.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/publishing.h"
#include "tests/cpp/train/refusals.h"

namespace penstock::train {
namespace {

using penstock::testing::holds_in_child;
using testing::eventually;
using testing::has;
using testing::message_of;

constexpr int64_t kLongNs = 60'000'000'000;

Example number_of(int64_t value, int64_t length = 2) {
  Tensor x = Tensor::make(DType::kInt64, {length});
  std::ranges::fill(x.as_span<int64_t>(), value);
  return {{"x", x}};
}

int64_t value_of(const Example& row) {
  EXPECT_EQ(row.at("y").shape(), (Shape{}));
  return row.at("y").as_span<const int64_t>()[0];
}

// y = the sum of each row, + 1.
Example sums(const Example& batch) {
  const Tensor& x = batch.at("x");
  Tensor y = Tensor::make(DType::kInt64, {x.dim(0)});
  for (int64_t row = 0; row < x.dim(0); ++row) {
    int64_t sum = 1;
    for (int64_t value : x.row(row).as_span<const int64_t>()) sum += value;
    y.as_span<int64_t>()[static_cast<size_t>(row)] = sum;
  }
  return {{"y", y}};
}

// A function that can be held up, and says what it was called with.
class HeldFunction {
 public:
  Batcher::Function function() {
    return [this](const Example& batch) {
      std::vector<int64_t> values;
      for (int64_t row = 0; row < batch.at("x").dim(0); ++row) {
        values.push_back(batch.at("x").row(row).as_span<const int64_t>()[0]);
      }
      {
        const std::lock_guard lock(mutex_);
        batches_.push_back(values);
      }
      EXPECT_EQ(running_.fetch_add(1), 0) << "two calls of the function at a time";
      ++begun_;
      while (shut_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      running_.fetch_sub(1);
      return sums(batch);
    };
  }
  std::vector<std::vector<int64_t>> batches() {
    const std::lock_guard lock(mutex_);
    return batches_;
  }
  bool begun(int count) {
    return eventually([&] { return begun_ >= count; });
  }

  std::atomic<bool> shut_{true};

 private:
  std::mutex mutex_;
  std::vector<std::vector<int64_t>> batches_;
  std::atomic<int> running_{0}, begun_{0};
};

std::future<int64_t> called(Batcher& batcher, int64_t value, int64_t timeout_ns = -1) {
  return std::async(std::launch::async, [&batcher, value, timeout_ns] {
    return value_of(batcher(number_of(value), timeout_ns));
  });
}

bool waits(Batcher& batcher, uint64_t calls) {
  return eventually([&] {
    const CallCounts counts = batcher.counts();
    return counts.queued + counts.blocked == calls;
  });
}

TEST(Batcher, a_lone_call_is_run_by_its_own_thread) {
  std::thread::id runner;
  Batcher batcher([&](const Example& batch) {
    runner = std::this_thread::get_id();
    return sums(batch);
  });
  EXPECT_EQ(value_of(batcher(number_of(3))), 7);
  EXPECT_EQ(runner, std::this_thread::get_id());
  const CallCounts counts = batcher.counts();
  EXPECT_EQ(counts.calls, 1u);
  EXPECT_EQ(counts.batches, 1u);
  EXPECT_EQ(counts.total.count(), 1u);
}

TEST(Batcher, calls_that_wait_are_one_batch_in_the_order_of_their_arrival) {
  HeldFunction gate;
  Batcher batcher(gate.function(), {.max_batch = 3});
  std::vector<std::future<int64_t>> results;
  results.push_back(called(batcher, 0));
  ASSERT_TRUE(gate.begun(1));
  for (int64_t i = 1; i <= 7; ++i) {
    results.push_back(called(batcher, i));
    ASSERT_TRUE(waits(batcher, static_cast<uint64_t>(i)));
  }
  gate.shut_ = false;
  for (int64_t i = 0; i <= 7; ++i) EXPECT_EQ(results[static_cast<size_t>(i)].get(), 2 * i + 1);
  EXPECT_EQ(gate.batches(), (std::vector<std::vector<int64_t>>{{0}, {1, 2, 3}, {4, 5, 6}, {7}}));
}

TEST(Batcher, many_threads_get_their_own_rows) {
  Batcher batcher(sums, {.max_batch = 5, .max_wait_ns = 100'000});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int64_t who = 0; who < 8; ++who) {
    threads.emplace_back([&, who] {
      for (int64_t i = 0; i < 300; ++i) {
        if (value_of(batcher(number_of(who * 1000 + i))) != 2 * (who * 1000 + i) + 1) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const CallCounts counts = batcher.counts();
  EXPECT_EQ(counts.calls, 2400u);
  EXPECT_EQ(counts.waited.count(), 2400u);
  EXPECT_GE(counts.batches, 2400u / 5);
  EXPECT_EQ(counts.queued + counts.blocked + counts.failed + counts.withdrawn, 0u);
}

TEST(Batcher, a_leader_waits_for_more_calls_up_to_max_wait) {
  Batcher alone(sums, {.max_wait_ns = 20'000'000});
  const uint64_t begin = now_ns();
  EXPECT_EQ(value_of(alone(number_of(1))), 3);
  EXPECT_GE(now_ns() - begin, 20'000'000u);

  HeldFunction gate;
  gate.shut_ = false;
  Batcher full(gate.function(), {.max_batch = 3, .max_wait_ns = kLongNs});
  auto first = called(full, 1);
  ASSERT_TRUE(waits(full, 1));
  auto second = called(full, 2), third = called(full, 3);
  EXPECT_EQ(first.get() + second.get() + third.get(), 15);  // a full batch does not wait
  EXPECT_EQ(gate.batches().size(), 1u);
}

TEST(Batcher, an_input_unlike_the_others_fails_alone) {
  HeldFunction gate;
  Batcher batcher(gate.function());
  auto first = called(batcher, 1);
  ASSERT_TRUE(gate.begun(1));
  // Before there is an answer, unlike inputs wait for batches of their own.
  auto unlike = std::async(std::launch::async,
                           [&] { return batcher(number_of(2, 5)).at("y").shape().size(); });
  ASSERT_TRUE(waits(batcher, 1));
  auto like = called(batcher, 3);
  ASSERT_TRUE(waits(batcher, 2));
  gate.shut_ = false;
  EXPECT_EQ(first.get(), 3);
  EXPECT_EQ(like.get(), 7);
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { unlike.get(); }),
                  "{x: int64 (5,)}, those before are {x: int64 (2,)}"));
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument,
                             [&] {
                               batcher({{"z", Tensor::make(DType::kInt64, {2})}});
                             }),
                  "{z: int64 (2,)}"));
  EXPECT_EQ(gate.batches(), (std::vector<std::vector<int64_t>>{{1}, {3}}));
}

TEST(Batcher, all_callers_of_a_batch_get_its_exception_and_later_ones_do_not) {
  HeldFunction gate;
  std::atomic<bool> broken{false};
  Batcher batcher([&, function = gate.function()](const Example& batch) {
    Example result = function(batch);
    if (broken && batch.at("x").dim(0) > 1) throw std::out_of_range("no such row");
    return result;
  });
  auto first = called(batcher, 0);
  ASSERT_TRUE(gate.begun(1));
  broken = true;
  auto second = called(batcher, 1), third = called(batcher, 2);
  ASSERT_TRUE(waits(batcher, 2));
  gate.shut_ = false;
  EXPECT_EQ(first.get(), 1);
  EXPECT_THROW(second.get(), std::out_of_range);
  EXPECT_THROW(third.get(), std::out_of_range);
  EXPECT_EQ(value_of(batcher(number_of(4))), 9);
  EXPECT_EQ(batcher.counts().failed, 2u);
}

TEST(Batcher, a_result_of_another_number_of_rows_is_an_error) {
  Batcher batcher([](const Example&) -> Example {
    return {{"y", Tensor::make(DType::kInt64, {2})}};
  });
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { batcher(number_of(1)); }),
                  "shape (2,) for 1 calls"));
}

TEST(Batcher, a_call_by_the_function_itself_is_an_error) {
  Batcher* self = nullptr;
  Batcher batcher([&](const Example& batch) { return (*self)(batch); });
  self = &batcher;
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { batcher(number_of(1)); }),
                  "calls its own batcher"));
}

TEST(Batcher, a_call_that_times_out_is_withdrawn) {
  HeldFunction gate;
  Batcher batcher(gate.function(), {.max_batch = 1, .max_queue = 1});
  auto first = called(batcher, 1);
  ASSERT_TRUE(gate.begun(1));
  auto second = called(batcher, 2);
  ASSERT_TRUE(waits(batcher, 1));
  EXPECT_EQ(batcher.counts().blocked, 0u);
  auto third = called(batcher, 3, 100'000'000);
  EXPECT_TRUE(
      has(message_of(Code::kTimeout, [&] { third.get(); }), "the queue is full, of 1 calls"));
  gate.shut_ = false;
  EXPECT_EQ(first.get(), 3);
  EXPECT_EQ(second.get(), 5);
  EXPECT_EQ(gate.batches(), (std::vector<std::vector<int64_t>>{{1}, {2}}));
  EXPECT_EQ(batcher.counts().withdrawn, 1u);
}

TEST(Batcher, a_caller_leaves_a_batch_that_runs_for_too_long) {
  std::atomic<int> begun{0}, open{0};  // batches
  Batcher batcher([&](const Example& batch) {
    const int own = ++begun;
    EXPECT_TRUE(eventually([&] { return open >= own; }));
    return sums(batch);
  });
  auto first = called(batcher, 1);
  ASSERT_TRUE(eventually([&] { return begun == 1; }));
  auto second = called(batcher, 2);
  ASSERT_TRUE(waits(batcher, 1));
  auto third = called(batcher, 3, 1'000'000'000);
  ASSERT_TRUE(waits(batcher, 2));
  open = 1;
  EXPECT_EQ(first.get(), 3);
  EXPECT_TRUE(has(message_of(Code::kTimeout, [&] { third.get(); }), "Batcher: "));
  open = 2;
  EXPECT_EQ(second.get(), 5);
  EXPECT_EQ(batcher.counts().withdrawn, 1u);
}

TEST(Batcher, close_ends_waiting_calls_and_completes_the_batch_that_runs) {
  HeldFunction gate;
  Batcher batcher(gate.function());
  auto first = called(batcher, 1);
  ASSERT_TRUE(gate.begun(1));
  auto second = called(batcher, 2);
  ASSERT_TRUE(waits(batcher, 1));
  batcher.close();
  message_of(Code::kClosed, [&] { second.get(); });
  gate.shut_ = false;
  EXPECT_EQ(first.get(), 3);
  message_of(Code::kClosed, [&] { batcher(number_of(3)); });
  batcher.close();

  Batcher gathering(sums, {.max_wait_ns = kLongNs});
  auto leader = called(gathering, 1);
  ASSERT_TRUE(waits(gathering, 1));
  gathering.close();
  message_of(Code::kClosed, [&] { leader.get(); });
}

TEST(Batcher, an_exception_of_while_waiting_withdraws_the_call_and_passes_the_lead_on) {
  HeldFunction gate;
  std::atomic<bool> interrupts{false};
  std::atomic<std::thread::id> whom;
  Batcher batcher(gate.function(), {.max_batch = 3, .max_wait_ns = kLongNs, .while_waiting = [&] {
                                      if (interrupts && std::this_thread::get_id() == whom.load())
                                        throw std::runtime_error("interrupted");
                                    }});
  gate.shut_ = false;
  auto leader = std::async(std::launch::async, [&] {
    whom = std::this_thread::get_id();
    return value_of(batcher(number_of(1)));
  });
  ASSERT_TRUE(waits(batcher, 1));
  auto second = called(batcher, 2);
  ASSERT_TRUE(waits(batcher, 2));
  interrupts = true;
  EXPECT_THROW(leader.get(), std::runtime_error);
  auto third = called(batcher, 3), fourth = called(batcher, 4);
  EXPECT_EQ(second.get() + third.get() + fourth.get(), 5 + 7 + 9);
  EXPECT_EQ(gate.batches().size(), 1u);
}

TEST(Batcher, a_forked_child_has_a_batcher_without_the_parents_calls) {
  HeldFunction gate;
  Batcher batcher(gate.function());
  auto first = called(batcher, 1);
  ASSERT_TRUE(gate.begun(1));
  auto second = called(batcher, 2);
  ASSERT_TRUE(waits(batcher, 1));
  EXPECT_TRUE(holds_in_child([&] {
    gate.shut_ = false;
    Batcher* in_child = &batcher;  // its function's counters are those of a running call
    return in_child->counts().queued == 0;
  }));
  EXPECT_EQ(batcher.counts().queued, 1u);
  gate.shut_ = false;
  EXPECT_EQ(first.get() + second.get(), 8);

  Batcher plain(sums);
  plain(number_of(1));
  EXPECT_TRUE(holds_in_child([&] { return value_of(plain(number_of(5))) == 11; }));
}

// ---- CallQueue: calls that no thread waits for

struct Submitted final : CallQueue::Call {
  explicit Submitted(int its_number) : number(its_number) {}
  int number;
};

TEST(CallQueue, a_helper_leads_submitted_calls_and_a_caller_its_own) {
  CallQueue queue("queue", {.max_batch = 2});
  std::vector<std::vector<int>> batches;
  const auto run = [&](const CallQueue::Call* own) {
    CallQueue::Batch batch = queue.take(own);
    if (batch.empty()) return;
    std::vector<int> numbers;
    for (const auto& call : batch) numbers.push_back(static_cast<Submitted&>(*call).number);
    batches.push_back(numbers);
    queue.finish(batch);
  };
  std::vector<std::shared_ptr<Submitted>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(std::make_shared<Submitted>(i));
  queue.submit(calls[0]);
  EXPECT_FALSE(queue.enter(calls[1]));  // the helper leads
  EXPECT_FALSE(queue.enter(calls[2]));
  queue.submit(calls[3]);
  queue.submit(calls[4]);
  EXPECT_TRUE(queue.wait_to_lead());
  run(nullptr);
  EXPECT_FALSE(queue.wait(*calls[1], 0));
  EXPECT_TRUE(queue.wait(*calls[2], 0));
  EXPECT_TRUE(queue.take(calls[1].get()).empty()) << "only the appointed caller may lead";
  run(calls[2].get());
  EXPECT_TRUE(queue.wait_to_lead());
  run(nullptr);
  EXPECT_EQ(batches, (std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4}}));
  queue.close();
  EXPECT_FALSE(queue.wait_to_lead());
}

TEST(CallQueue, a_withdrawn_call_is_not_run_and_the_lead_goes_on) {
  CallQueue queue("queue", {});
  auto first = std::make_shared<Submitted>(0), second = std::make_shared<Submitted>(1);
  queue.submit(first);
  EXPECT_TRUE(queue.withdraw(*first));
  EXPECT_FALSE(queue.withdraw(*first)) << "twice";
  EXPECT_FALSE(queue.enter(second));  // the helper was appointed and does not know yet
  EXPECT_TRUE(queue.wait_to_lead());
  CallQueue::Batch batch = queue.take(nullptr);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0], second);
  EXPECT_TRUE(queue.withdraw(*second)) << "its result is dropped";
  queue.finish(batch);
  EXPECT_TRUE(second->abandoned);
  EXPECT_FALSE(queue.withdraw(*second));
  EXPECT_EQ(queue.counts().withdrawn, 2u);
  EXPECT_TRUE(queue.enter(std::make_shared<Submitted>(2)));
}

TEST(CallQueue, an_interrupted_batch_waits_again_as_the_oldest) {
  CallQueue queue("queue", {});
  std::vector<std::shared_ptr<Submitted>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(std::make_shared<Submitted>(i));
  EXPECT_TRUE(queue.enter(calls[0]));
  EXPECT_FALSE(queue.enter(calls[1]));
  queue.submit(calls[2]);
  CallQueue::Batch batch = queue.take(calls[0].get());
  EXPECT_EQ(batch.size(), 3u);
  std::thread([&] { EXPECT_FALSE(queue.enter(calls[3])); }).join();
  queue.put_back(batch, calls[0].get());
  EXPECT_TRUE(CallQueue::ended(*calls[0]));
  EXPECT_TRUE(queue.wait(*calls[1], 0)) << "the next caller leads";
  batch = queue.take(calls[1].get());
  ASSERT_EQ(batch.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(batch[i], calls[i + 1]);
  queue.close();
  queue.put_back(batch, calls[1].get());
  EXPECT_TRUE(CallQueue::ended(*calls[3]));
  message_of(Code::kClosed, [&] { std::rethrow_exception(calls[2]->error); });
}

TEST(CallQueue, callers_with_a_lock_go_on_one_after_the_other_and_then_the_next_leader) {
  CallQueue queue("queue", {.max_batch = 3, .in_turn = true});
  std::vector<std::shared_ptr<Submitted>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(std::make_shared<Submitted>(i));
  EXPECT_TRUE(queue.enter(calls[0]));
  for (size_t i = 1; i < 4; ++i) EXPECT_FALSE(queue.enter(calls[i]));
  queue.finish(queue.take(calls[0].get()));
  message_of(Code::kTimeout, [&] { queue.wait(*calls[3], 0); });  // does not lead yet
  EXPECT_FALSE(queue.enter(calls[4])) << "nor does a call that comes now";
  EXPECT_FALSE(queue.wait(*calls[1], UINT64_MAX));
  queue.returned(*calls[1]);
  queue.returned(*calls[1]);  // twice
  EXPECT_EQ(queue.take(calls[4].get()).size(), 0u);
  EXPECT_FALSE(queue.wait(*calls[2], UINT64_MAX));
  queue.returned(*calls[2]);
  EXPECT_TRUE(queue.wait(*calls[4], 0));
  queue.finish(queue.take(calls[4].get()));
  EXPECT_TRUE(queue.enter(std::make_shared<Submitted>(5))) << "a lone caller waits for nobody";
}

TEST(CallQueue, limits_are_checked) {
  message_of(Code::kInvalidArgument, [] { CallQueue("queue", {.max_batch = 0}); });
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument,
                             [] { CallQueue("queue", {.max_batch = 8, .max_queue = 4}); }),
                  "max_queue is 4"));
}

TEST(LatencyHistogram, quantiles_are_at_most_an_eighth_too_long) {
  LatencyHistogram all;
  EXPECT_EQ(all.quantile_ns(0.5), 0u);
  for (uint64_t ns = 1; ns <= 100'000; ++ns) all.add(ns);
  EXPECT_EQ(all.count(), 100'000u);
  EXPECT_EQ(all.longest_ns(), 100'000u);
  EXPECT_DOUBLE_EQ(all.mean_ns(), 50'000.5);
  for (double share : {0.0001, 0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = share * 100'000;
    EXPECT_GE(static_cast<double>(all.quantile_ns(share)), exact);
    EXPECT_LE(static_cast<double>(all.quantile_ns(share)), exact * 1.125 + 1);
  }
  LatencyHistogram edges;
  for (uint64_t ns : {uint64_t{0}, uint64_t{7}, uint64_t{8}, UINT64_MAX}) edges.add(ns);
  uint64_t counted = 0;
  for (size_t bucket = 0; bucket < LatencyHistogram::kBuckets; ++bucket) {
    counted += edges.count(bucket);
    if (bucket > 0) {
      EXPECT_GT(LatencyHistogram::limit_ns(bucket), LatencyHistogram::limit_ns(bucket - 1));
    }
  }
  EXPECT_EQ(counted, 4u);
  EXPECT_EQ(edges.quantile_ns(0.5), 7u);
  EXPECT_EQ(edges.quantile_ns(1), UINT64_MAX);
}

}  // namespace
}  // namespace penstock::train
