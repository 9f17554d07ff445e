#include "penstock/train/channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>

#include "penstock/train/channel_memory.h"
#include "penstock/train/ring.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/channels.h"
#include "tests/cpp/train/refusals.h"

// Both ends of a channel in one process.
namespace penstock::train {
namespace {

using testing::a_name;
using testing::an_item;
using testing::eventually;
using testing::has;
using testing::has_producers;
using testing::message_of;
using testing::seen;
using testing::total;

#ifdef PENSTOCK_SANITIZED
constexpr int64_t kItems = 300;
#else
constexpr int64_t kItems = 5'000;
#endif

TEST(Channel, items_of_one_producer_are_a_batch_in_their_order) {
  Channel channel(a_name(), {.capacity = 1 << 16});
  EXPECT_TRUE(channel.get(10, 0).empty());
  Producer producer(channel.name());
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(producer.put(an_item(1, i, 5)));
  Items items = channel.get(4);
  ASSERT_TRUE(items.stacked());
  const Example batch = items.blocks()[0].batch();
  EXPECT_EQ(batch.at("x").shape(), (Shape{4, 5}));
  EXPECT_EQ(batch.at("id").shape(), (Shape{4, 2}));
  auto all = seen(items);
  for (const auto& item : seen(channel.get(10))) all.push_back(item);
  ASSERT_EQ(all.size(), 7u);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(all[i].number, i);
    EXPECT_TRUE(all[i].whole);
  }
}

TEST(Channel, items_of_other_shapes_are_apart_and_in_order) {
  Channel channel(a_name());
  Producer producer(channel.name());
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(producer.put(an_item(1, i, i % 2 == 0 ? 3 : 300)));
  const Items items = channel.get(10);
  ASSERT_EQ(items.size(), 6u);
  EXPECT_FALSE(items.stacked());
  const auto all = seen(items);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(all[i].number, i);
    EXPECT_TRUE(all[i].whole);
  }
  producer.put(Example{{"y", Tensor::make(DType::kUint8, {0, 4})}});
  producer.put(Example{{"y", Tensor::make(DType::kUint8, {0, 4})}});
  const Items empty = channel.get(10);
  ASSERT_TRUE(empty.stacked());
  EXPECT_EQ(empty.blocks()[0].batch().at("y").shape(), (Shape{2, 0, 4}));
}

TEST(Channel, items_up_to_the_capacity_are_taken_and_larger_ones_are_an_error_with_a_remedy) {
  Channel channel(a_name(), {.capacity = 1 << 16});
  ASSERT_EQ(channel.capacity(), 1u << 16);
  Producer producer(channel.name());
  // The record has 64 bytes of header and spec, and a column of 64 for the id.
  const int64_t most = ((1 << 16) - 64 - 64) / 4;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(producer.put(an_item(1, i, most)));
    const auto got = seen(channel.get(1));
    ASSERT_EQ(got.size(), 1u);
    EXPECT_TRUE(got[0].whole);
    EXPECT_EQ(got[0].number, i);
    producer.put(an_item(1, i, i));  // the next item begins at another place
    EXPECT_EQ(channel.get(5).size(), 1u);
  }
  const std::string why =
      message_of(Code::kInvalidArgument, [&] { producer.put(an_item(1, 0, most + 1)); });
  EXPECT_TRUE(has(why, "65536") && has(why, "larger capacity")) << why;
  EXPECT_EQ(total(channel.stats()).put, 10u);
  message_of(Code::kInvalidArgument, [] { Channel(a_name(), {.capacity = 0}); });
  message_of(Code::kInvalidArgument, [] { Channel(a_name(), {.capacity = UINT64_MAX}); });
}

TEST(Channel, a_full_ring_blocks_until_there_is_space) {
  Channel channel(a_name(), {.capacity = 4096});
  Producer producer(channel.name());
  while (producer.try_put(ElementSpec({{"x", LeafKind::kDense, DType::kInt64, {}}}), 64,
                          [](std::byte* to) { std::memset(to, 0, 64); }) ==
         Producer::Attempt::kPut) {
  }
  message_of(Code::kTimeout, [&] { producer.put(an_item(1, 1, 8), 1'000'000); });
  std::thread later([&] { EXPECT_TRUE(producer.put(an_item(1, 1, 8))); });
  uint64_t got = 0;
  while (got < 33) got += channel.get(1).size();
  later.join();
  EXPECT_EQ(total(channel.stats()).put, 33u);
  EXPECT_EQ(total(channel.stats()).queued, 0u);
}

TEST(Channel, an_item_for_a_full_ring_is_refused_or_drops_the_oldest) {
  for (WhenFull when_full : {WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    Channel channel(a_name(), {.capacity = 4096, .when_full = when_full});
    Producer producer(channel.name());
    uint64_t in = 0;
    for (int i = 0; i < 100; ++i) in += producer.put(an_item(1, i, 8)) ? 1 : 0;
    const auto all = seen(channel.get(1000));
    const auto sum = total(channel.stats());
    EXPECT_EQ(sum.got, all.size());
    EXPECT_EQ(sum.put, in);
    EXPECT_GT(all.size(), 5u);
    if (when_full == WhenFull::kDropNewest) {
      EXPECT_EQ(in, all.size());
      EXPECT_EQ(all[0].number, 0);
      EXPECT_EQ(sum.refused, 100 - in);
    } else {
      EXPECT_EQ(in, 100u);
      EXPECT_EQ(all.back().number, 99);
      EXPECT_EQ(sum.dropped, 100 - all.size());
    }
  }
}

TEST(Channel, many_producers_and_takers_have_every_item_once_under_every_policy) {
  for (WhenFull when_full : {WhenFull::kBlock, WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    Channel channel(a_name(), {.capacity = 8192, .when_full = when_full});
    constexpr int kThreads = 6, kTakers = 2;
    std::atomic<uint64_t> let_in{0};
    std::vector<std::thread> threads;
    for (int who = 0; who < kThreads; ++who) {
      threads.emplace_back([&, who] {
        Producer producer(channel.name());
        for (int64_t i = 0; i < kItems; ++i) {
          // Items of several sizes, some with another spec.
          let_in += producer.put(an_item(who, i, i % 50 == 0 ? i % 7 : 11)) ? 1 : 0;
        }
      });
    }
    std::atomic<bool> over{false};
    std::vector<std::map<int64_t, std::vector<int64_t>>> got(kTakers);
    std::atomic<int> torn{0};
    std::vector<std::thread> takers;
    for (int t = 0; t < kTakers; ++t) {
      takers.emplace_back([&, t] {
        for (;;) {
          const bool was_over = over.load();
          const Items items = channel.get(64, 1'000'000);
          for (const auto& item : seen(items)) {
            torn += item.whole ? 0 : 1;
            got[t][item.who].push_back(item.number);
          }
          if (items.empty() && was_over) return;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    over.store(true);
    for (auto& taker : takers) taker.join();
    EXPECT_EQ(torn.load(), 0);
    uint64_t all = 0;
    for (auto& of_taker : got) {
      for (auto& [who, numbers] : of_taker) {
        EXPECT_TRUE(std::ranges::is_sorted(numbers));
        all += numbers.size();
      }
    }
    for (int64_t who = 0; who < kThreads; ++who) {
      std::vector<int64_t> numbers;
      for (auto& of_taker : got) {
        numbers.insert(numbers.end(), of_taker[who].begin(), of_taker[who].end());
      }
      std::ranges::sort(numbers);
      EXPECT_TRUE(std::ranges::adjacent_find(numbers) == numbers.end()) << "one came twice";
    }
    const auto sum = total(channel.stats());
    EXPECT_EQ(sum.got, all);
    EXPECT_EQ(sum.put, let_in.load());
    EXPECT_EQ(sum.put, sum.got + sum.dropped);
    EXPECT_EQ(sum.put + sum.refused, uint64_t{kThreads} * kItems);
    if (when_full == WhenFull::kBlock) {
      EXPECT_EQ(all, uint64_t{kThreads} * kItems);
    }
  }
}

TEST(Channel, rings_are_taken_from_in_turn) {
  Channel channel(a_name());
  std::vector<std::unique_ptr<Producer>> producers;
  for (int who = 0; who < 70; ++who) {
    producers.push_back(std::make_unique<Producer>(channel.name()));
    for (int i = 0; i < (who == 0 ? 2000 : 4); ++i) producers.back()->put(an_item(who, i, 3));
  }
  std::map<int64_t, int> count;
  for (const auto& item : seen(channel.get(140))) ++count[item.who];
  EXPECT_EQ(count.size(), 70u);
  EXPECT_EQ(count[0], 2);
  for (const auto& item : seen(channel.get(70))) ++count[item.who];
  EXPECT_EQ(count[0], 3);
}

TEST(Channel, threads_of_one_producer_share_its_ring) {
  Channel channel(a_name(), {.capacity = 4096});
  Producer producer(channel.name());
  std::vector<std::thread> threads;
  for (int who = 0; who < 4; ++who) {
    threads.emplace_back([&, who] {
      for (int64_t i = 0; i < kItems / 10; ++i) EXPECT_TRUE(producer.put(an_item(who, i, 4)));
    });
  }
  std::map<int64_t, int64_t> next;
  for (int64_t got = 0; got < 4 * (kItems / 10);) {
    for (const auto& item : seen(channel.get(16))) {
      EXPECT_EQ(item.number, next[item.who]++);
      ++got;
    }
  }
  for (auto& thread : threads) thread.join();
}

TEST(Channel, items_of_a_disconnected_producer_are_taken_and_counted) {
  Channel channel(a_name());
  {
    Producer producer(channel.name());
    for (int i = 0; i < 3; ++i) producer.put(an_item(1, i, 3));
  }
  ASSERT_TRUE(has_producers(channel, 0));
  auto counts = channel.stats();
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_FALSE(counts[0].alive);
  EXPECT_EQ(counts[0].queued, 3u);
  EXPECT_EQ(channel.get(10).size(), 3u);
  Producer next(channel.name());
  next.put(an_item(2, 0, 3));
  counts = channel.stats();
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0].got, 3u);
  EXPECT_EQ(counts[1].put, 1u);
  EXPECT_TRUE(counts[1].alive);
}

TEST(Channel, close_ends_waits_at_both_ends_and_reports_lost_items) {
  Channel channel(a_name(), {.capacity = 4096});
  Producer producer(channel.name());
  std::thread taker([&] {
    message_of(Code::kClosed, [&] {
      while (true) channel.get(1);
    });
  });
  ASSERT_TRUE(eventually([&] { return producer.put(an_item(1, 0, 3)); }));
  ASSERT_TRUE(eventually([&] { return total(channel.stats()).got == 1; }));
  channel.close();
  taker.join();
  EXPECT_TRUE(has(message_of(Code::kClosed, [&] { producer.put(an_item(1, 0, 3)); }), "0 items"));
  EXPECT_FALSE(producer.alive());

  Channel again(channel.name(), {.capacity = 4096});
  Producer other(channel.name());
  std::thread putter([&] {
    const std::string why = message_of(Code::kClosed, [&] {
      while (true) other.put(an_item(1, 0, 100));
    });
    EXPECT_TRUE(has(why, "7 items")) << why;
  });
  ASSERT_TRUE(eventually([&] { return total(again.stats()).queued == 7; }));
  again.close();
  putter.join();
  EXPECT_EQ(other.lost(), 7u);
  EXPECT_EQ(total(again.stats()).put, 7u);

  Channel third(channel.name(), {.capacity = 4096});
  Producer mine(channel.name());
  std::thread waiting([&] {
    message_of(Code::kClosed, [&] {
      while (true) mine.put(an_item(1, 0, 100));
    });
  });
  ASSERT_TRUE(eventually([&] { return total(third.stats()).queued == 7; }));
  mine.close();
  waiting.join();
}

TEST(Channel, a_producer_with_reconnect_waits_for_the_next_learner) {
  auto first = std::make_unique<Channel>(a_name());
  const std::string name = first->name();
  message_of(Code::kInvalidArgument, [&] { Channel second(name); });
  Producer producer(name, {.reconnect = true});
  producer.put(an_item(1, 0, 3));
  first.reset();
  message_of(Code::kTimeout, [&] { producer.put(an_item(1, 1, 3), 1'000'000); });
  std::thread later([&] { EXPECT_TRUE(producer.put(an_item(1, 2, 3))); });
  Channel second(name);
  const auto got = seen(second.get(1));
  later.join();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].number, 2);
  EXPECT_EQ(producer.lost(), 1u);
  EXPECT_TRUE(producer.alive());
}

TEST(Channel, attaching_without_a_learner_is_an_error) {
  EXPECT_TRUE(has(message_of(Code::kTimeout, [] { Producer(a_name(), {.timeout_ns = 0}); }),
                  "no process has a channel"));
  message_of(Code::kInvalidArgument, [] { Producer(""); });
  // Names of weights are independent.
  const std::string name = a_name();
  Publisher publisher(name, testing::two_blocks());
  message_of(Code::kTimeout, [&] { Producer(name, {.timeout_ns = 0}); });
}

TEST(Channel, an_item_whose_write_throws_is_not_put) {
  Channel channel(a_name());
  Producer producer(channel.name());
  const ElementSpec spec({{"x", LeafKind::kDense, DType::kInt64, {}}});
  EXPECT_THROW(producer.put(spec, 64, [](std::byte*) { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_TRUE(channel.get(1, 0).empty());
  EXPECT_TRUE(producer.put(an_item(1, 0, 3)));
  EXPECT_EQ(channel.get(5).size(), 1u);
}

TEST(Channel, a_producer_of_an_invalid_item_is_evicted_and_named) {
  Channel channel(a_name());
  Producer good(channel.name()), bad(channel.name());
  good.put(an_item(1, 0, 3));
  // A block shorter than its spec; offsets that do not ascend.
  const ElementSpec longer({{"x", LeafKind::kDense, DType::kInt64, {100}}});
  bad.put(longer, 64, [](std::byte*) {});
  EXPECT_EQ(channel.get(5).size(), 1u);
  const std::string why = message_of(Code::kDataLoss, [&] { channel.get(5, 0); });
  EXPECT_TRUE(has(why, "process " + std::to_string(getpid()))) << why;
  message_of(Code::kClosed, [&] {
    while (true) bad.put(an_item(2, 0, 3));
  });
  ASSERT_TRUE(has_producers(channel, 1));
  const ElementSpec text({{"t", LeafKind::kText, DType::kUint8, {-1}}});
  Producer worse(channel.name());
  worse.put(text, 192, [](std::byte* to) { std::memset(to, 0xFF, 192); });
  message_of(Code::kDataLoss, [&] { channel.get(5, 1'000'000'000); });
  EXPECT_TRUE(good.put(an_item(1, 1, 3)));
  EXPECT_EQ(channel.get(5).size(), 1u);
}

// The memory of this process's channels.
std::vector<std::shared_ptr<ChannelMemory>> channels_here() {
  std::vector<std::shared_ptr<ChannelMemory>> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // for the descriptor that reads this folder
    const std::string to = std::filesystem::read_symlink(entry, gone).string();
    if (!to.starts_with("/memfd:penstock-channel")) continue;
    all.push_back(ChannelMemory::open(os::Fd(dup(std::stoi(entry.path().filename())))));
  }
  return all;
}

TEST(Channel, a_producer_with_corrupt_words_is_evicted) {
  Channel channel(a_name());
  Producer bad(channel.name());
  bad.put(an_item(1, 0, 3));
  for (const auto& memory : channels_here()) {
    memory->words(0).head.store((uint64_t{1} << 27) << Ring::kCountBits);
  }
  const std::string why = message_of(Code::kDataLoss, [&] { channel.get(5, 1'000'000'000); });
  EXPECT_TRUE(has(why, "process " + std::to_string(getpid()))) << why;
  message_of(Code::kClosed, [&] {
    while (true) bad.put(an_item(2, 0, 3));
  });
  EXPECT_TRUE(Producer(channel.name()).put(an_item(1, 1, 3)));
  EXPECT_EQ(channel.get(5).size(), 1u);
}

// Nobody took an item or asked for counts meanwhile.
TEST(Channel, counts_are_right_when_the_rings_have_wrapped_unseen) {
  Channel channel(a_name(), {.when_full = WhenFull::kDropOldest});
  Producer producer(channel.name());
  EXPECT_TRUE(producer.put(an_item(1, 0, 3)));
  EXPECT_EQ(channel.get(1).size(), 1u);
  constexpr uint64_t kMore = 3 * (Ring::kCountMask + 1) + 7;
  {
    // As if so many more had been put and dropped.
    const auto memory = channels_here().at(0);
    RingWords& words = memory->words(0);
    for (auto* word : {&words.head, &words.tail}) {
      const uint64_t at = word->load();
      word->store((at & ~Ring::kCountMask) | ((at + kMore) & Ring::kCountMask));
    }
    words.put.fetch_add(kMore);
  }
  EXPECT_TRUE(producer.put(an_item(1, 1, 3)));
  ProducerCounts counts = channel.stats().at(0);
  EXPECT_EQ(counts.put, kMore + 2);
  EXPECT_EQ(counts.got, 1u);
  EXPECT_EQ(counts.queued, 1u);
  EXPECT_EQ(counts.dropped, kMore);
  // A producer that is killed between its two stores has not put the item.
  channels_here().at(0)->words(0).put.fetch_add(1);
  EXPECT_EQ(channel.stats().at(0).put, kMore + 2);
}

TEST(Channel, an_item_of_nothing_is_refused_as_such) {
  Channel channel(a_name());
  Producer producer(channel.name());
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { producer.put(Example()); }),
                  "the item is empty"));
}

}  // namespace
}  // namespace penstock::train
