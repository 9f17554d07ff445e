#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <vector>

#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/channels.h"
#include "tests/cpp/train/refusals.h"

// A channel between processes, of which some are killed, stopped, or fork. Children are forked
// while this process has one thread.
namespace penstock::train {
namespace {

using penstock::testing::Gate;
using penstock::testing::kill_child;
using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::a_name;
using testing::an_item;
using testing::eventually;
using testing::has_producers;
using testing::message_of;
using testing::seen;
using testing::total;

#ifdef PENSTOCK_SANITIZED
constexpr int kKills = 8;
constexpr int64_t kItemsOfEach = 200;
#else
constexpr int kKills = 40;
constexpr int64_t kItemsOfEach = 3'000;
#endif

constexpr WhenFull kPolicies[] = {WhenFull::kBlock, WhenFull::kDropNewest, WhenFull::kDropOldest};

bool sleep_for_ever() {
  for (;;) pause();
}

// A taker's record of each producer: its items come in order, each once, and whole.
class Ledger {
 public:
  void take(Channel& channel, int64_t timeout_ns) {
    for (const auto& item : seen(channel.get(64, timeout_ns))) {
      auto [last, fresh] = last_.try_emplace(item.who, -1);
      right_ &= item.whole && item.number > last->second;
      last->second = item.number;
      ++count_[item.who];
    }
  }
  // Takes items until all producers have ended and the rings are empty.
  void take_all(Channel& channel) {
    while (channel.producers() > 0 || total(channel.stats()).queued > 0) take(channel, 1'000'000);
  }
  bool right() const { return right_; }
  int64_t last(int64_t who) { return last_.contains(who) ? last_[who] : -1; }
  uint64_t count(int64_t who) { return count_[who]; }

 private:
  std::map<int64_t, int64_t> last_;
  std::map<int64_t, uint64_t> count_;
  bool right_ = true;
};

ProducerCounts of(const Channel& channel, pid_t pid) {
  for (const auto& each : channel.stats()) {
    if (each.pid == pid) return each;
  }
  return {};
}

TEST(ChannelProcesses, all_that_living_producers_put_arrives) {
  for (WhenFull when_full : kPolicies) {
    const std::string name = a_name();
    constexpr int kProcesses = 4;
    std::vector<pid_t> children;
    Gate counts;
    for (int who = 0; who < kProcesses; ++who) {
      children.push_back(start_child([&] {
        Producer producer(name);
        uint64_t let_in = 0;
        for (int64_t i = 0; i < kItemsOfEach; ++i)
          let_in += producer.put(an_item(who, i, 50)) ? 1 : 0;
        return counts.send(std::pair<int64_t, uint64_t>{getpid(), let_in});
      }));
    }
    Channel channel(name, {.capacity = 4096, .when_full = when_full});
    Ledger ledger;
    while (channel.stats().size() < kProcesses) ledger.take(channel, 1'000'000);
    ledger.take_all(channel);
    EXPECT_TRUE(ledger.right());
    for (pid_t child : children) EXPECT_EQ(status_of(child), 0);
    for (int i = 0; i < kProcesses; ++i) {
      std::pair<int64_t, uint64_t> count;
      ASSERT_TRUE(counts.receive(count));
      const auto found = of(channel, static_cast<pid_t>(count.first));
      EXPECT_EQ(found.put, count.second);
      EXPECT_EQ(found.put, found.got + found.dropped);
      EXPECT_EQ(found.put + found.refused, static_cast<uint64_t>(kItemsOfEach));
      if (when_full == WhenFull::kBlock) {
        EXPECT_EQ(found.got, static_cast<uint64_t>(kItemsOfEach));
      }
    }
  }
}

// The n-th item is never finished: the process is killed while it writes it, at the given byte.
bool dies_in_item(const std::string& name, int64_t n, size_t at) {
  Producer producer(name);
  for (int64_t i = 0; i < n; ++i) producer.put(an_item(1, i, 50));
  const ElementSpec spec({{"x", LeafKind::kDense, DType::kUint8, {1000}}});
  producer.put(spec, 1024, [&](std::byte* to) {
    std::memset(to, 0xEE, at);
    kill(getpid(), SIGKILL);
  });
  return false;
}

TEST(ChannelProcesses, a_producer_killed_while_it_writes_an_item_loses_only_that_item) {
  for (WhenFull when_full : kPolicies) {
    Channel channel(a_name(), {.capacity = 1 << 16, .when_full = when_full});
    Producer other(channel.name());
    for (size_t at : {size_t{0}, size_t{500}, size_t{1024}}) {
      Gate gate;
      // From a process with one thread: a grandchild, forked by a child without this process's
      // threads.
      const pid_t child = start_child([&] { return dies_in_item(channel.name(), 20, at); });
      EXPECT_TRUE(WIFSIGNALED(status_of(child)));
      other.put(an_item(2, static_cast<int64_t>(at), 50));
      ASSERT_TRUE(has_producers(channel, 1));
      Ledger ledger;
      while (total(channel.stats()).queued > 0) ledger.take(channel, 0);
      EXPECT_TRUE(ledger.right());
      EXPECT_EQ(ledger.count(1), 20u);
      EXPECT_EQ(ledger.count(2), 1u);
      EXPECT_EQ(of(channel, child).put, 20u);
      EXPECT_EQ(of(channel, child).got, 20u);
    }
  }
}

TEST(ChannelProcesses, killed_at_any_time_they_lose_at_most_the_item_in_hand) {
  for (WhenFull when_full : kPolicies) {
    const std::string name = a_name();
    Channel channel(name, {.capacity = 4096, .when_full = when_full});
    Ledger ledger;
    for (int round = 0; round < kKills; ++round) {
      Gate count_gate;
      const pid_t child = start_child([&] {
        Producer producer(name);
        for (int64_t i = 0;; ++i) {
          if (producer.put(an_item(round, i, 50)) && i % 16 == 0 && i < 16'000) count_gate.send(i);
        }
        return true;
      });
      int64_t said;
      ASSERT_TRUE(count_gate.receive(said));
      for (int i = 0; i < 5; ++i) ledger.take(channel, 1'000'000'000);
      kill_child(child);
      ledger.take_all(channel);
      EXPECT_TRUE(ledger.right());
      const auto found = of(channel, child);
      EXPECT_EQ(found.put, found.got + found.dropped);
      EXPECT_EQ(found.got, ledger.count(round));
      if (when_full == WhenFull::kBlock) {
        EXPECT_EQ(found.put, static_cast<uint64_t>(ledger.last(round)) + 1);
        EXPECT_EQ(found.dropped, 0u);
      } else if (when_full == WhenFull::kDropNewest) {
        EXPECT_EQ(found.dropped, 0u);
      }
    }
  }
}

TEST(ChannelProcesses,
     a_stopped_producer_blocks_no_other_and_a_stopped_learner_only_blocking_producers) {
  const std::string name = a_name();
  Gate gate;
  const pid_t stopped = start_child([&] {
    Producer producer(name);
    producer.put(an_item(1, 0, 3));
    gate.send(1);
    for (int64_t i = 1;; ++i) producer.put(an_item(1, i, 3));
    return true;
  });
  {
    Channel channel(name, {.capacity = 4096});
    int there;
    ASSERT_TRUE(gate.receive(there));
    kill(stopped, SIGSTOP);
    int status;
    ASSERT_EQ(waitpid(stopped, &status, WUNTRACED), stopped);
    Producer producer(name);
    Ledger ledger;
    for (int64_t i = 0; i < 100; ++i) {
      producer.put(an_item(2, i, 50));
      ledger.take(channel, 0);
    }
    while (total(channel.stats()).queued > 0) ledger.take(channel, 0);
    EXPECT_EQ(ledger.count(2), 100u);
    kill_child(stopped);
  }
  for (WhenFull when_full : {WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    const std::string other = a_name();
    const pid_t learner = start_child([&] {
      Channel channel(other, {.capacity = 4096, .when_full = when_full});
      for (;;) channel.get(3);
      return true;
    });
    Producer producer(other);
    producer.put(an_item(1, 0, 50));
    kill(learner, SIGSTOP);
    int status;
    ASSERT_EQ(waitpid(learner, &status, WUNTRACED), learner);
    for (int64_t i = 0; i < 1000; ++i) producer.put(an_item(1, i, 50));
    kill_child(learner);
  }
}

TEST(ChannelProcesses, a_killed_learner_closes_the_channel_or_leaves_it_to_the_next) {
  const std::string name = a_name();
  auto learner = [&](Gate& ready) {
    return start_child([&] {
      Channel channel(name, {.capacity = 4096});
      ready.send(1);
      if (channel.get(1).empty()) return false;
      return sleep_for_ever();
    });
  };
  Gate ready;
  int there;
  const pid_t first = learner(ready);
  ASSERT_TRUE(ready.receive(there));
  Producer closing(name), lasting(name, {.reconnect = true});
  closing.put(an_item(1, 0, 3));
  for (int i = 0; i < 3; ++i) lasting.put(an_item(2, i, 3));
  Gate full;
  const pid_t blocked = start_child([&] {
    Producer producer(name);
    uint64_t in = 0;
    try {
      for (;; ++in) producer.put(an_item(3, 0, 100), 20'000'000);
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) return false;
    }
    full.send(1);
    try {
      for (;; ++in) producer.put(an_item(3, 0, 100));
    } catch (const Error& error) {
      // The learner took one item, of this producer or of another.
      return error.code() == Code::kClosed && producer.lost() + 1 >= in && producer.lost() <= in;
    }
  });
  ASSERT_TRUE(full.receive(there));
  kill_child(first);
  EXPECT_EQ(status_of(blocked), 0);
  message_of(Code::kClosed, [&] {
    while (true) closing.put(an_item(1, 1, 3));
  });
  message_of(Code::kClosed, [&] { closing.put(an_item(1, 2, 3)); });
  const pid_t second = learner(ready);
  ASSERT_TRUE(ready.receive(there));
  // Items that were put into the first learner's ring before its end was noticed are counted.
  const uint64_t before = lasting.lost();
  EXPECT_TRUE(eventually([&] { return lasting.put(an_item(2, 3, 3)) && lasting.lost() >= 2; }))
      << before;
  EXPECT_TRUE(lasting.alive());
  kill_child(second);
}

TEST(ChannelProcesses, rows_are_given_again_and_more_than_all_of_them_are_refused) {
  Channel channel(a_name(), {.capacity = 4096});
  for (int i = 0; i < 200; ++i) {
    Producer producer(channel.name());
    producer.put(an_item(i, 0, 3));
    EXPECT_EQ(channel.get(1).size(), 1u);
  }
  ASSERT_TRUE(has_producers(channel, 0));
  EXPECT_EQ(total(channel.stats()).got, 200u);
  std::vector<std::unique_ptr<Producer>> all;
  for (uint32_t i = 0; i < kProducers; ++i) {
    all.push_back(std::make_unique<Producer>(channel.name()));
  }
  message_of(Code::kOutOfMemory, [&] { Producer one_more(channel.name()); });
  all.pop_back();
  ASSERT_TRUE(has_producers(channel, kProducers - 1));
  EXPECT_NO_THROW(Producer(channel.name()));
}

class ChannelFork : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer does not run processes that fork with threads";
#endif
  }
};

TEST_F(ChannelFork, a_producers_child_is_a_producer_of_its_own) {
  const std::string name = a_name();
  const pid_t parent = start_child([&] {
    Producer producer(name);
    producer.put(an_item(1, 0, 3));
    const pid_t child = start_child(
        [&] { return producer.put(an_item(2, 0, 3)) && producer.put(an_item(2, 1, 3)); });
    producer.put(an_item(1, 1, 3));
    return status_of(child) == 0 && producer.put(an_item(1, 2, 3));
  });
  Channel channel(name);
  Ledger ledger;
  while (ledger.count(1) < 3 || ledger.count(2) < 2) ledger.take(channel, -1);
  EXPECT_TRUE(ledger.right());
  EXPECT_EQ(status_of(parent), 0);
  EXPECT_EQ(channel.stats().size(), 2u);
  ASSERT_TRUE(has_producers(channel, 0));
}

TEST_F(ChannelFork, a_producers_child_keeps_nothing_of_its_dead_parent) {
  const std::string name = a_name();
  Gate forked;
  const pid_t parent = start_child([&] {
    Producer producer(name);
    const pid_t child = start_child([] { return sleep_for_ever(); });
    forked.send(child);
    return sleep_for_ever();
  });
  Channel channel(name);
  pid_t child;
  ASSERT_TRUE(forked.receive(child));
  EXPECT_EQ(channel.producers(), 1u);
  kill_child(parent);
  EXPECT_TRUE(has_producers(channel, 0));
  kill(child, SIGKILL);
}

TEST_F(ChannelFork, a_learners_child_has_no_channel_and_keeps_nothing) {
  const std::string name = a_name();
  Gate forked;
  const pid_t learner = start_child([&] {
    auto channel = std::make_unique<Channel>(name);
    Gate refused;
    const pid_t child = start_child([&] {
      bool right = false;
      try {
        channel->get(1);
      } catch (const Error& error) {
        right = error.code() == Code::kInvalidArgument;
      }
      channel.reset();
      refused.send(right);
      return sleep_for_ever();
    });
    bool right;
    if (!refused.receive(right) || !right) return false;
    forked.send(child);
    return sleep_for_ever();
  });
  Producer producer(name);
  pid_t child;
  ASSERT_TRUE(forked.receive(child));
  producer.put(an_item(1, 0, 3));
  kill_child(learner);
  message_of(Code::kClosed, [&] {
    while (true) producer.put(an_item(1, 0, 3));
  });
  Channel next(name);
  kill(child, SIGKILL);
}

}  // namespace
}  // namespace penstock::train
