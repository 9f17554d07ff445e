#include "penstock/online/message_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "penstock/base/os.h"
#include "penstock/online/push_source.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/online/spool_folder.h"

namespace penstock::online {
namespace {

using penstock::testing::Acknowledged;
using penstock::testing::flip;
using penstock::testing::FullDisk;
using penstock::testing::Gate;
using penstock::testing::holds_in_child;
using penstock::testing::kill_child;
using penstock::testing::message_of;
using penstock::testing::start_child;
using penstock::testing::thrown_by;
using namespace std::chrono_literals;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kVeryLong = int64_t{3600} * 1000 * kMs;

class MessageQueues : public penstock::testing::SpoolFolder {
 protected:
  std::shared_ptr<PushSource> source() {
    return std::make_shared<PushSource>(
        [this](std::span<const uint64_t> tokens) { acknowledged_.add(tokens); });
  }
  QueueOptions spooled(int64_t fsync_ns = kMs) const {
    QueueOptions options;
    options.log = LogOptions{.folder = folder_, .fsync_ns = fsync_ns};
    return options;
  }
  // Message n: its payload is the number, its token n + 1, its packet identifier n % 100 + 1.
  static bool put(MessageQueue& queue, uint64_t n, bool duplicate = false) {
    return queue.put(message_of("t", std::to_string(n), n + 1, n % 100 + 1, duplicate));
  }
  static bool push(PushSource& source, uint64_t n, bool duplicate = false) {
    return source.push(message_of("t", std::to_string(n), n + 1, n % 100 + 1, duplicate));
  }
  static std::vector<uint64_t> numbers(const std::vector<StoredMessage>& messages) {
    std::vector<uint64_t> all;
    for (const StoredMessage& each : messages)
      all.push_back(std::stoull(std::string(each.payload())));
    return all;
  }
  static std::vector<uint64_t> range(uint64_t begin, uint64_t end) {
    std::vector<uint64_t> all(end - begin);
    std::iota(all.begin(), all.end(), begin);
    return all;
  }
  std::vector<uint64_t> sorted_tokens() const {
    auto all = acknowledged_.all();
    std::ranges::sort(all);
    return all;
  }
  // All that is there, without waiting.
  static std::vector<uint64_t> take_all(MessageQueue& queue) {
    std::vector<uint64_t> all;
    for (;;) {
      const auto some = numbers(queue.take(1000, 1, 0, 0));
      if (some.empty()) return all;
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  static void expect_sums(const MessageQueue& queue) {
    const QueueCounts counts = queue.counts();
    EXPECT_EQ(counts.received + counts.replayed,
              counts.taken + counts.queued + counts.dropped + counts.duplicates);
  }

  Acknowledged acknowledged_;
};

TEST_F(MessageQueues, messages_are_taken_in_order_at_most_as_many_as_asked_for) {
  MessageQueue queue({.max_messages = 10});
  for (uint64_t n = 0; n < 7; ++n) EXPECT_TRUE(put(queue, n));
  EXPECT_EQ(queue.next_offset(), 0);
  const auto three = queue.take(3);
  EXPECT_EQ(numbers(three), range(0, 3));
  EXPECT_EQ(three[2].offset, 2);
  EXPECT_EQ(three[2].topic(), "t");
  EXPECT_EQ(queue.next_offset(), 3);
  EXPECT_EQ(numbers(queue.take(100)), range(3, 7));
  EXPECT_FALSE(queue.finished());
  queue.ended("");
  EXPECT_TRUE(queue.finished());
  EXPECT_TRUE(queue.take(1).empty());
  expect_sums(queue);
}

TEST_F(MessageQueues, no_room_is_an_error) {
  EXPECT_EQ(thrown_by([] { MessageQueue({.max_messages = 0}); }).code, Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([] { MessageQueue({.max_bytes = 0}); }).code, Code::kInvalidArgument);
}

TEST_F(MessageQueues, block_is_full_by_messages_or_by_bytes_until_some_are_taken) {
  for (const QueueOptions& options :
       {QueueOptions{.max_messages = 4}, QueueOptions{.max_bytes = 4 * (128 + 2)}}) {
    MessageQueue queue(options);
    for (uint64_t n = 0; n < 4; ++n) {
      EXPECT_FALSE(queue.full());
      put(queue, n);
    }
    EXPECT_TRUE(queue.full());
    EXPECT_FALSE(queue.wait_for_space(0));
    EXPECT_TRUE(put(queue, 4)) << "accepted all the same";
    EXPECT_EQ(queue.take(1).size(), 1);
    EXPECT_TRUE(queue.full());
    EXPECT_EQ(queue.take(1).size(), 1);
    EXPECT_FALSE(queue.full());
    EXPECT_TRUE(queue.wait_for_space(0));
    EXPECT_EQ(take_all(queue), range(2, 5));
    EXPECT_EQ(queue.counts().dropped, 0);
  }
}

TEST_F(MessageQueues, drop_oldest_keeps_the_newest_within_messages_and_bytes) {
  for (const QueueOptions& options :
       {QueueOptions{.max_messages = 4, .when_full = WhenFull::kDropOldest},
        QueueOptions{.max_bytes = 4 * (128 + 3), .when_full = WhenFull::kDropOldest}}) {
    MessageQueue queue(options);
    for (uint64_t n = 10; n < 50; ++n) {
      EXPECT_FALSE(queue.full());
      EXPECT_TRUE(put(queue, n));
      EXPECT_LE(queue.counts().queued_bytes, 4 * (128 + 3));
    }
    EXPECT_EQ(queue.counts().dropped, 36);
    const auto taken = queue.take(100);
    EXPECT_EQ(numbers(taken), range(46, 50));
    EXPECT_EQ(taken[0].offset, 36) << "dropped messages keep their offsets";
    EXPECT_EQ(queue.next_offset(), 40);
    expect_sums(queue);
  }
}

TEST_F(MessageQueues, drop_newest_keeps_the_oldest_and_says_so) {
  MessageQueue queue({.max_messages = 4, .when_full = WhenFull::kDropNewest});
  for (uint64_t n = 0; n < 40; ++n) EXPECT_EQ(put(queue, n), n < 4);
  EXPECT_EQ(queue.counts().dropped, 36);
  EXPECT_EQ(take_all(queue), range(0, 4));
  EXPECT_TRUE(put(queue, 40));
  EXPECT_EQ(queue.take(1)[0].offset, 4);
  expect_sums(queue);
}

TEST_F(MessageQueues, a_message_larger_than_the_queue_is_taken_alone) {
  for (const auto policy : {WhenFull::kBlock, WhenFull::kDropOldest, WhenFull::kDropNewest}) {
    MessageQueue queue({.max_bytes = 1000, .when_full = policy});
    const std::string large(5000, 'x');
    EXPECT_TRUE(queue.put(message_of("t", large)));
    EXPECT_EQ(queue.full(), policy == WhenFull::kBlock);
    EXPECT_EQ(queue.take(1)[0].payload(), large);
    EXPECT_FALSE(queue.full());
  }
}

TEST_F(MessageQueues, take_waits_for_least_but_not_longer_than_max_wait_from_the_oldest) {
  MessageQueue queue({.max_messages = 100});
  uint64_t before = now_ns();
  put(queue, 0);
  EXPECT_EQ(queue.take(10, 5, 50 * kMs).size(), 1);
  EXPECT_GE(now_ns() - before, 50 * kMs);
  Message old = message_of("t", "0");
  old.received_ns -= 60'000 * kMs;
  queue.put(old);
  put(queue, 1);
  before = now_ns();
  EXPECT_EQ(queue.take(10, 5, 50'000 * kMs).size(), 2);
  EXPECT_LT(now_ns() - before, 40'000 * kMs) << "the oldest has waited long enough";
  std::thread putting([&] {
    for (uint64_t n = 0; n < 5; ++n) {
      std::this_thread::sleep_for(1ms);
      put(queue, n);
    }
  });
  EXPECT_EQ(queue.take(10, 5, kVeryLong).size(), 5);
  putting.join();
  EXPECT_TRUE(queue.take(10, 5, kVeryLong, 0).empty()) << "the timeout";
  put(queue, 0);
  EXPECT_TRUE(queue.take(10, 5, kVeryLong, 20 * kMs).empty()) << "the timeout";
  EXPECT_EQ(queue.counts().queued, 1);
  queue.ended("");
  EXPECT_EQ(queue.take(10, 5, kVeryLong).size(), 1) << "no more will come";
}

TEST_F(MessageQueues, a_full_queue_is_taken_without_waiting_for_least) {
  MessageQueue few({.max_messages = 3});
  for (uint64_t n = 0; n < 3; ++n) put(few, n);
  EXPECT_EQ(few.take(10, 10, kVeryLong).size(), 3);
  MessageQueue small({.max_bytes = 3 * (128 + 2)});
  for (uint64_t n = 0; n < 3; ++n) put(small, n);
  ASSERT_TRUE(small.full());
  EXPECT_EQ(small.take(10, 10, kVeryLong).size(), 3);
}

TEST_F(MessageQueues, ages_are_of_the_messages_taken_last_and_counted_once) {
  MessageQueue queue({.max_messages = 10});
  put(queue, 0);
  std::this_thread::sleep_for(20ms);
  put(queue, 1);
  EXPECT_EQ(queue.take(10).size(), 2);
  const auto ages = queue.aged();
  ASSERT_EQ(ages.size(), 2);
  EXPECT_GE(ages[0], 20 * kMs);
  EXPECT_LT(ages[1], ages[0]);
  queue.aged();
  EXPECT_EQ(queue.counts().ages.count(), 2);
}

TEST_F(MessageQueues, without_a_log_spooled_acknowledges_at_once_and_after_train_when_trained) {
  for (const auto policy : {Acknowledge::kSpooled, Acknowledge::kAfterTrain}) {
    MessageQueue queue({.max_messages = 10, .acknowledge = policy});
    const auto from = source();
    queue.start(from);
    for (uint64_t n = 0; n < 5; ++n) push(*from, n);
    if (policy == Acknowledge::kSpooled) {
      EXPECT_EQ(acknowledged_.count(), 5);
      continue;
    }
    const size_t before = acknowledged_.count();
    queue.take(3);
    EXPECT_EQ(acknowledged_.count(), before);
    queue.trained(2);
    EXPECT_EQ(acknowledged_.count(), before + 2);
    queue.trained(3);
    queue.trained(1);
    EXPECT_EQ(acknowledged_.count(), before + 3);
    queue.stop();
    EXPECT_EQ(acknowledged_.count(), before + 3);
  }
}

TEST_F(MessageQueues, with_a_log_a_message_is_acknowledged_after_the_flush_whatever_becomes_of_it) {
  auto options = spooled(kVeryLong);
  options.max_messages = 2;
  options.when_full = WhenFull::kDropOldest;
  MessageQueue queue(options);
  const auto from = source();
  queue.start(from);
  for (uint64_t n = 0; n < 5; ++n) push(*from, n);
  EXPECT_EQ(numbers(queue.take(10)), range(3, 5));
  queue.trained(5);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(acknowledged_.count(), 0);
  queue.sync();
  EXPECT_EQ(acknowledged_.all(), range(1, 6)) << "the dropped ones are in the log, too";
  EXPECT_EQ(queue.counts().spooled, 5);
}

TEST_F(MessageQueues, after_train_with_a_log_needs_both_the_training_and_the_flush) {
  auto options = spooled(kVeryLong);
  options.acknowledge = Acknowledge::kAfterTrain;
  MessageQueue queue(options);
  const auto from = source();
  queue.start(from);
  for (uint64_t n = 0; n < 4; ++n) push(*from, n);
  queue.take(2);
  queue.trained(2);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(acknowledged_.count(), 0) << "trained on, but a crash would lose them";
  queue.sync();
  EXPECT_EQ(acknowledged_.all(), range(1, 3));
  queue.take(2);
  EXPECT_EQ(acknowledged_.count(), 2) << "flushed, but not trained on";
  queue.trained(4);
  EXPECT_EQ(acknowledged_.all(), range(1, 5));
}

TEST_F(MessageQueues, stop_acknowledges_what_is_in_the_log_before_the_source_is_stopped) {
  class Slow final : public MessageSource {
   public:
    void start(MessageSink&) override {}
    void acknowledge(std::span<const uint64_t> tokens) override {
      std::this_thread::sleep_for(20ms);
      acknowledged += tokens.size();
    }
    void space() override {}
    void stop() override { at_stop = acknowledged.load(); }
    std::string state() const override { return "{}"; }
    void publish(std::string_view, std::span<const std::byte>, int) override {}

    std::atomic<size_t> acknowledged{0};
    size_t at_stop = 0;
  };
  const auto from = std::make_shared<Slow>();
  MessageQueue queue(spooled(kVeryLong));
  queue.start(from);
  for (uint64_t n = 0; n < 10; ++n) put(queue, n);
  queue.stop();
  EXPECT_EQ(from->at_stop, 10);
}

TEST_F(MessageQueues, a_redelivered_message_is_acknowledged_and_not_taken_twice) {
  for (const bool log : {false, true}) {
    MessageQueue queue(log ? spooled() : QueueOptions{});
    const auto from = source();
    const size_t before = acknowledged_.count();
    queue.start(from);
    push(*from, 0);
    push(*from, 0, true);
    EXPECT_TRUE(from->push(message_of("t", "1", 2, 1, true))) << "another payload";
    EXPECT_TRUE(from->push(message_of("t", "1", 3, 0, true))) << "no identifier";
    EXPECT_TRUE(from->push(message_of("t", "1", 4, 1, false))) << "no redelivery";
    EXPECT_EQ(take_all(queue), (std::vector<uint64_t>{0, 1, 1, 1}));
    EXPECT_EQ(queue.counts().duplicates, 1);
    queue.stop();
    EXPECT_EQ(acknowledged_.count(), before + 5);
    expect_sums(queue);
  }
}

// The broker sends nothing new before its redelivered messages are acknowledged.
TEST_F(MessageQueues, after_train_acknowledges_a_redelivery_of_a_message_that_was_trained_on) {
  auto options = spooled();
  options.acknowledge = Acknowledge::kAfterTrain;
  {
    MessageQueue queue(options);
    for (uint64_t n = 0; n < 5; ++n) put(queue, n);
  }
  options.offset = 2;
  MessageQueue queue(options);
  const auto from = source();
  queue.start(from);
  push(*from, 0, true);
  EXPECT_EQ(acknowledged_.count(), 0) << "it may be the first delivery's turn in the log";
  EXPECT_EQ(take_all(queue), range(2, 5));
  queue.trained(5);
  EXPECT_EQ(acknowledged_.all(), std::vector<uint64_t>{1});
  push(*from, 1, true);
  push(*from, 4, true);
  EXPECT_EQ(acknowledged_.all(), (std::vector<uint64_t>{1, 2, 5})) << "nothing else will come";
  push(*from, 5);
  push(*from, 4, true);
  EXPECT_EQ(acknowledged_.count(), 3);
  queue.take(1);
  queue.sync();
  queue.trained(6);
  EXPECT_EQ(acknowledged_.all(), (std::vector<uint64_t>{1, 2, 5, 6, 5}));
}

TEST_F(MessageQueues, the_log_is_replayed_from_the_offset_before_what_comes_in) {
  {
    MessageQueue queue(spooled());
    for (uint64_t n = 0; n < 100; ++n) put(queue, n);
  }
  auto options = spooled();
  options.offset = 40;
  options.max_messages = 5;
  options.when_full = WhenFull::kDropNewest;
  MessageQueue queue(options);
  EXPECT_EQ(queue.next_offset(), 40);
  for (uint64_t n = 100; n < 105; ++n) put(queue, n);
  EXPECT_FALSE(put(queue, 105));
  const auto taken = queue.take(50);
  EXPECT_EQ(numbers(taken), range(40, 90));
  EXPECT_EQ(taken[0].offset, 40);
  EXPECT_EQ(queue.next_offset(), 90);
  EXPECT_FALSE(queue.finished());
  queue.stop();
  EXPECT_FALSE(queue.finished());
  EXPECT_EQ(take_all(queue), range(90, 105));
  EXPECT_TRUE(queue.finished());
  EXPECT_EQ(queue.counts().replayed, 60);
  expect_sums(queue);
}

TEST_F(MessageQueues, a_log_behind_the_offset_is_skipped_and_one_that_begins_after_it_is_an_error) {
  auto options = spooled();
  options.log->segment_bytes = 1;
  options.offset = 10;
  {
    MessageQueue queue(options);
    put(queue, 10);
    queue.sync();
    put(queue, 11);
    queue.sync();
    queue.trim(11);
    EXPECT_EQ(files(), std::vector<std::string>{file(11)});
  }
  const auto thrown = thrown_by([&] { MessageQueue queue(options); });
  EXPECT_EQ(thrown.code, Code::kDataLoss);
  EXPECT_NE(thrown.text.find(folder_ + " begins at message 11"), std::string::npos) << thrown.text;
  options.offset = 30;
  MessageQueue queue(options);
  put(queue, 30);
  EXPECT_EQ(queue.take(1)[0].offset, 30);
}

TEST_F(MessageQueues, a_damaged_message_of_the_log_loses_none_before_it) {
  {
    MessageQueue queue(spooled());
    for (uint64_t n = 0; n < 10; ++n) put(queue, n);
  }
  MessageQueue queue(spooled());
  flip(file(0), std::filesystem::file_size(file(0)) / 2);
  const auto taken = numbers(queue.take(100));
  EXPECT_FALSE(taken.empty());
  EXPECT_EQ(taken, range(0, taken.size()));
  for (int i = 0; i < 2; ++i) {
    const auto thrown = thrown_by([&] { queue.take(100); });
    EXPECT_EQ(thrown.code, Code::kDataLoss);
    EXPECT_NE(thrown.text.find("message " + std::to_string(taken.size()) + " is damaged"),
              std::string::npos)
        << thrown.text;
  }
}

TEST_F(MessageQueues, on_a_full_disk_take_throws_and_nothing_more_is_acknowledged) {
  uint64_t acknowledged = 0, sent = 0;
  {
    MessageQueue queue(spooled(0));
    const auto from = source();
    queue.start(from);
    {
      const FullDisk full(4096);
      std::optional<Error> error;
      while (!error) {
        try {
          queue.take(1, 1, 0, 0);
          from->push(message_of("t", std::to_string(sent), sent + 1), 0);
          ++sent;
        } catch (const Error& thrown) {
          if (thrown.code() != Code::kTimeout) error = thrown;  // push() waits, and take() throws
        }
      }
      EXPECT_EQ(error->error_number(), EFBIG);
      EXPECT_NE(std::string(error->what()).find("Make space"), std::string::npos) << error->what();
      EXPECT_TRUE(queue.full());
      EXPECT_TRUE(put(queue, sent)) << "not stored";
    }
    acknowledged = acknowledged_.count();
    EXPECT_EQ(thrown_by([&] { queue.take(1); }).code, Code::kSystem) << "space does not help it";
    EXPECT_EQ(thrown_by([&] { queue.sync(); }).code, Code::kSystem);
    queue.close();
    EXPECT_EQ(acknowledged_.count(), acknowledged);
  }
  EXPECT_LT(acknowledged, sent + 1);
  MessageQueue queue(spooled(0));
  const auto stored = take_all(queue);
  EXPECT_GE(stored.size(), acknowledged);
  EXPECT_EQ(stored, range(0, stored.size()));
  EXPECT_TRUE(put(queue, stored.size()));
  queue.sync();
}

TEST_F(MessageQueues, a_source_whose_start_throws_can_be_followed_by_another) {
  class Refuses final : public MessageSource {
   public:
    void start(MessageSink&) override { throw Error(Code::kInvalidArgument, "test", "refused"); }
    void acknowledge(std::span<const uint64_t>) override { ADD_FAILURE(); }
    void space() override { ADD_FAILURE(); }
    void stop() override { ADD_FAILURE() << "it was never started"; }
    std::string state() const override { return "{}"; }
    void publish(std::string_view, std::span<const std::byte>, int) override {}
  };
  MessageQueue queue({.max_messages = 2, .acknowledge = Acknowledge::kAfterTrain});
  EXPECT_EQ(thrown_by([&] { queue.start(std::make_shared<Refuses>()); }).text, "test: refused");
  EXPECT_EQ(queue.source(), nullptr);
  put(queue, 0);
  queue.trained(1);
  const auto from = source();
  queue.start(from);
  push(*from, 1);
  EXPECT_EQ(take_all(queue), range(0, 2));
  MessageQueue other({});
  EXPECT_EQ(thrown_by([&] { other.start(from); }).code, Code::kInvalidArgument);
  other.close();
  push(*from, 2);  // it is still that of the first queue
  queue.stop();
  EXPECT_EQ(thrown_by([&] { queue.start(source()); }).code, Code::kClosed);
  EXPECT_EQ(thrown_by([&] { push(*from, 3); }).code, Code::kClosed);
}

TEST_F(MessageQueues, an_error_of_the_source_comes_after_its_messages) {
  MessageQueue queue({});
  const auto from = source();
  queue.start(from);
  push(*from, 0);
  from->end("the broker refuses the password");
  EXPECT_EQ(queue.take(1).size(), 1);
  const auto thrown = thrown_by([&] { queue.take(1); });
  EXPECT_EQ(thrown.code, Code::kClosed);
  EXPECT_EQ(thrown.text, "Online: the broker refuses the password");
}

TEST_F(MessageQueues, objects_are_kept_and_dropped_ones_destroyed_without_the_lock) {
  MessageQueue queue({.max_messages = 2, .when_full = WhenFull::kDropOldest});
  std::atomic<int> destroyed{0};
  const auto object = [&] {
    return std::shared_ptr<void>(new int(0), [&](void* mine) {
      delete static_cast<int*>(mine);
      queue.counts();  // needs the lock
      destroyed.fetch_add(1);
    });
  };
  queue.put_object(object(), 0);
  queue.put_object(object(), 0);
  queue.put_object(object(), 0);
  EXPECT_EQ(destroyed, 1);
  put(queue, 7);  // a message drops an object
  EXPECT_EQ(destroyed, 2);
  {
    const auto taken = queue.take(5);
    EXPECT_NE(taken[0].object, nullptr);
    EXPECT_EQ(taken[1].payload(), "7");
  }
  EXPECT_EQ(destroyed, 3);
  MessageQueue with_log(spooled());
  EXPECT_EQ(thrown_by([&] { with_log.put_object(object(), 0); }).code, Code::kInvalidArgument);
}

TEST_F(MessageQueues, stop_ends_take_and_wait_for_space_and_what_is_queued_can_be_taken) {
  for (const bool log : {false, true}) {
    auto options = log ? spooled() : QueueOptions{};
    options.max_messages = 3;
    MessageQueue queue(options);
    std::thread taking([&] { EXPECT_TRUE(queue.take(1).empty()); });
    std::this_thread::sleep_for(5ms);
    queue.stop();
    taking.join();
    MessageQueue full({.max_messages = 1});
    put(full, 0);
    std::thread waiting([&] { EXPECT_FALSE(full.wait_for_space(-1)); });
    std::this_thread::sleep_for(5ms);
    full.stop();
    waiting.join();
    EXPECT_EQ(full.take(5).size(), 1);
    EXPECT_TRUE(full.finished());
  }
}

TEST_F(MessageQueues, closed_in_the_middle_while_all_threads_work) {
  for (int round = 0; round < 10; ++round) {
    std::filesystem::remove_all(folder_);
    auto options = round % 2 == 0 ? spooled() : QueueOptions{};
    options.max_messages = 16;
    options.acknowledge = round % 4 < 2 ? Acknowledge::kSpooled : Acknowledge::kAfterTrain;
    MessageQueue queue(options);
    const auto from = source();
    const size_t acknowledged_before = acknowledged_.count();
    queue.start(from);
    std::atomic<uint64_t> pushed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        EXPECT_EQ(thrown_by([&] {
                    for (;;) from->push(message_of("t", "1", pushed.fetch_add(1) + 1));
                  }).code,
                  Code::kClosed);
      });
    }
    threads.emplace_back([&] {
      while (queue.wait_for_space(-1)) put(queue, pushed.fetch_add(1));
    });
    threads.emplace_back([&] {
      try {
        while (!queue.finished()) {
          queue.take(7, 3, kMs);
          queue.aged();
          queue.trained(queue.next_offset());
        }
      } catch (const Error& closed) {
        EXPECT_EQ(closed.code(), Code::kClosed) << closed.what();
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        queue.counts();
        queue.full();
        if (const auto its = queue.source()) its->state();
        try {
          queue.sync();
        } catch (const Error& closed) {
          EXPECT_EQ(closed.code(), Code::kClosed) << closed.what();
        }
      }
    });
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        std::this_thread::sleep_for(3ms);
        queue.close();
      });
    }
    for (std::thread& each : threads) each.join();
    expect_sums(queue);
    if (!options.log) continue;
    MessageQueue again(options);
    EXPECT_GE(take_all(again).size(), acknowledged_.count() - acknowledged_before);
  }
}

TEST_F(MessageQueues, no_wake_up_is_lost_between_a_slow_consumer_and_sources_that_wait) {
  for (const bool log : {false, true}) {
    auto options = log ? spooled() : QueueOptions{};
    options.max_messages = 2;
    if (log) options.log->max_pending = 64;
    MessageQueue queue(options);
    const auto from = source();
    queue.start(from);
    const uint64_t each_pushes = log ? 100 : 1000;
    std::vector<std::thread> pushing;
    for (int i = 0; i < 3; ++i) {
      pushing.emplace_back([&] {
        for (uint64_t n = 0; n < each_pushes; ++n) {
          from->push(message_of("t", "1", 1), 20'000 * kMs);
        }
      });
    }
    for (uint64_t taken = 0; taken < 3 * each_pushes;) taken += queue.take(2).size();
    for (std::thread& each : pushing) each.join();
    EXPECT_EQ(queue.counts().received, 3 * each_pushes);
    EXPECT_EQ(queue.counts().dropped, 0);
  }
}

TEST_F(MessageQueues, a_burst_of_100000_messages_stays_within_the_memory_bound) {
#ifdef PENSTOCK_SANITIZED
  constexpr uint64_t kBurst = 20'000;
#else
  constexpr uint64_t kBurst = 100'000;
#endif
  const std::string payload(1000, 'x');
  for (const auto policy : {WhenFull::kBlock, WhenFull::kDropOldest}) {
    std::filesystem::remove_all(folder_);
    auto options = spooled(10 * kMs);
    options.max_bytes = 2 << 20;
    options.log->max_pending = 1 << 20;
    options.when_full = policy;
    MessageQueue queue(options);
    const auto from = source();
    queue.start(from);
    [[maybe_unused]] const uint64_t before = os::process_resident_bytes();
    std::atomic<uint64_t> most{0};
    std::thread pushing([&] {
      for (uint64_t n = 0; n < kBurst; ++n) {
        from->push(message_of("t", payload));
        if (n % 1000 == 0) {
          EXPECT_LE(queue.counts().queued_bytes, options.max_bytes + 2 * (payload.size() + 129));
          most = std::max(most.load(), os::process_resident_bytes());
        }
      }
      from->end();
    });
    uint64_t taken = 0;
    while (!queue.finished()) taken += queue.take(256).size();
    pushing.join();
    EXPECT_EQ(taken + queue.counts().dropped, kBurst);
    if (policy == WhenFull::kBlock) {
      EXPECT_EQ(taken, kBurst);
    }
    EXPECT_EQ(queue.counts().received, kBurst);
#ifndef PENSTOCK_SANITIZED
    EXPECT_LT(most - std::min(before, most.load()), uint64_t{24} << 20) << "of 100 MB";
#endif
    queue.sync();
    EXPECT_EQ(queue.counts().spooled, kBurst);
  }
}

TEST_F(MessageQueues, a_forked_child_neither_joins_nor_hangs) {
  for (const bool log : {false, true}) {
    auto queue = std::make_unique<MessageQueue>(log ? spooled() : QueueOptions{.max_messages = 5});
    const auto from = source();
    queue->start(from);
    std::atomic<bool> stop{false};
    std::thread pushing([&] {
      try {
        while (!stop) from->push(message_of("t", "1", 1));
      } catch (const Error& error) {  // it waited for space when the queue was stopped
        EXPECT_TRUE(stop) << error.what();
      }
    });
    std::thread taking([&] {
      while (!stop) {
        queue->take(10, 5, kMs, 10 * kMs);
        queue->trained(queue->next_offset());
      }
    });
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(holds_in_child([&] {
        for (const auto& work : std::vector<std::function<void()>>{
                 [&] { put(*queue, 0); }, [&] { queue->take(1); }, [&] { queue->sync(); },
                 [&] { queue->counts(); }, [&] { queue->stop(); }, [&] { queue->full(); }}) {
          if (thrown_by(work).code != Code::kInvalidArgument) return false;
        }
        queue->close();
        queue = nullptr;
        MessageQueue own({});
        put(own, 0);
        return own.take(1).size() == 1;
      })) << i;
    }
    stop = true;
    taking.join();
    queue->stop();
    pushing.join();
  }
}

TEST_F(MessageQueues, a_consumer_killed_at_any_time_goes_on_with_each_message_once) {
  // The child trains, and reports each message that was acknowledged or trained on. Its snapshot is
  // the pipe: the offset behind what was trained on.
  for (const auto policy : {Acknowledge::kSpooled, Acknowledge::kAfterTrain}) {
    std::filesystem::remove_all(folder_);
    uint64_t offset = 0, acknowledged = 0;
    for (int round = 0; round < 4; ++round) {
      int out[2];
      ASSERT_EQ(pipe(out), 0);
      const pid_t child = start_child([&] {
        auto options = spooled();
        options.acknowledge = policy;
        options.offset = offset;
        options.max_messages = 50;
        MessageQueue queue(options);
        const auto from = std::make_shared<PushSource>([&](std::span<const uint64_t> tokens) {
          for (const uint64_t token : tokens) {
            const uint64_t line[2] = {1, token};
            (void)!write(out[1], line, sizeof line);
          }
        });
        queue.start(from);
        std::thread pushing([&] {
          const uint64_t begin = queue.counts().replayed;
          for (uint64_t n = begin;; ++n) from->push(message_of("t", "x", n + 1));
        });
        for (;;) {
          for (const StoredMessage& each : queue.take(8)) {
            const uint64_t line[2] = {2, each.offset};
            (void)!write(out[1], line, sizeof line);
          }
          queue.trained(queue.next_offset());
        }
        return true;
      });
      close(out[1]);
      uint64_t line[2], lines = 0, tokens = 0, expected = offset;
      while (read(out[0], line, sizeof line) == ssize_t{sizeof line}) {
        if (line[0] == 2) {
          ASSERT_EQ(line[1], expected++) << "each once, in order";
        } else {
          ++tokens;
        }
        if (++lines == static_cast<uint64_t>(400 + 111 * round)) kill(child, SIGKILL);
      }
      kill_child(child);
      close(out[0]);
      if (policy == Acknowledge::kAfterTrain) {
        EXPECT_LE(tokens, expected - offset);
      }
      acknowledged += tokens;
      offset = expected;
      EXPECT_GE(MessageLog(*spooled().log, nullptr).end(), acknowledged);
      offset = std::min(offset, MessageLog(*spooled().log, nullptr).end());
    }
  }
}

// ---- PushSource

TEST_F(MessageQueues, a_program_pushes_what_its_own_callback_gets) {
  MessageQueue queue({.max_messages = 8});
  const auto from = source();
  EXPECT_EQ(thrown_by([&] { push(*from, 0); }).code, Code::kClosed) << "not started";
  from->end();
  queue.start(from);
  // Another library's thread, which calls a callback.
  const auto on_message = [&](std::string_view topic, std::span<const std::byte> payload) {
    from->push({.topic = topic, .payload = payload});
  };
  std::thread library([&] {
    for (uint64_t n = 0; n < 1000; ++n) {
      const std::string payload = std::to_string(n);
      on_message("t", std::as_bytes(std::span(payload)));
    }
    from->end();
  });
  std::vector<uint64_t> all;
  while (!queue.finished()) {
    const auto messages = queue.take(256);
    for (const uint64_t age : queue.aged()) EXPECT_LT(age, uint64_t{60} * 1000 * kMs);
    const auto some = numbers(messages);
    all.insert(all.end(), some.begin(), some.end());
    queue.trained(queue.next_offset());
  }
  library.join();
  EXPECT_EQ(all, range(0, 1000));
}

TEST_F(MessageQueues, push_waits_for_space_until_its_timeout_or_stop) {
  MessageQueue queue({.max_messages = 1});
  const auto from = source();
  queue.start(from);
  push(*from, 0);
  EXPECT_EQ(thrown_by([&] { from->push(message_of("t", "1"), 0); }).code, Code::kTimeout);
  EXPECT_EQ(thrown_by([&] { from->push(message_of("t", "1"), 5 * kMs); }).code, Code::kTimeout);
  std::thread waiting([&] { push(*from, 1); });
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(queue.take(1).size(), 1);
  EXPECT_EQ(numbers(queue.take(1)), range(1, 2));
  waiting.join();
  push(*from, 2);
  std::thread stopped([&] { EXPECT_EQ(thrown_by([&] { push(*from, 3); }).code, Code::kClosed); });
  std::this_thread::sleep_for(5ms);
  queue.stop();
  stopped.join();
  EXPECT_EQ(numbers(queue.take(5)), range(2, 3));
}

TEST_F(MessageQueues, an_acknowledgement_may_push_the_next_message) {
  MessageQueue queue({.max_messages = 100});
  std::shared_ptr<PushSource> from;
  uint64_t next = 1;
  from = std::make_shared<PushSource>([&](std::span<const uint64_t>) {
    if (next < 10) push(*from, next++);
  });
  queue.start(from);
  push(*from, 0);
  EXPECT_EQ(take_all(queue), range(0, 10));
}

}  // namespace
}  // namespace penstock::online
