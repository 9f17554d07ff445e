#include "penstock/train/channel_relay.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>

#include "tests/cpp/train/channels.h"
#include "tests/cpp/train/refusals.h"

// Both ends of a channel's relay in one process, where the other host's channel has another name.
namespace penstock::train {
namespace {

using testing::a_name;
using testing::an_item;
using testing::eventually;
using testing::message_of;
using testing::seen;
using testing::total;

constexpr char kItemSecret[] = "a secret of tests";

class ChannelRelayTest : public ::testing::Test {
 protected:
  ChannelRelayTest() {
    net::ListenOptions options;
    options.secret = kItemSecret;
    sender_ = std::make_unique<ItemSender>(there_, "tcp://127.0.0.1:0", options);
    answering_ = std::thread([this] {
      while (!stop_) {
        try {
          sender_->answer(0.05);
        } catch (const Error&) {
          ++errors_;
        }
      }
    });
  }
  ~ChannelRelayTest() override {
    stop_ = true;
    answering_.join();
  }
  ItemReceiver receiver() const {
    net::ConnectOptions options;
    options.secret = kItemSecret;
    return {here_, sender_->address(), options};
  }
  // Takes until so many items have come.
  static void take(ItemReceiver& receiver, uint64_t items) {
    while (items > 0) {
      if (const auto taken = receiver.take(5)) items -= std::min(items, taken->items);
    }
  }

  const std::string here_ = a_name(), there_ = here_ + "-there";
  std::unique_ptr<ItemSender> sender_;
  std::atomic<bool> stop_{false};
  std::atomic<int> errors_{0};
  std::thread answering_;
};

TEST_F(ChannelRelayTest, items_arrive_whole_and_in_order) {
  Channel channel(here_, {.capacity = 1 << 16});
  auto to = receiver();
  EXPECT_FALSE(to.take(0.01));
  Producer producer(there_);
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(producer.put(an_item(1, i, i % 7 == 0 ? 40 : 5)));
  take(to, 300);
  const auto all = seen(channel.get(1000));
  ASSERT_EQ(all.size(), 300u);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(all[i].number, i);
    EXPECT_TRUE(all[i].whole);
  }
  EXPECT_FALSE(to.take(0.01));
  EXPECT_EQ(to.there().put, 300u);
  EXPECT_EQ(to.there().got, 300u);
  EXPECT_EQ(to.there().queued, 0u);
}

TEST_F(ChannelRelayTest, a_full_channel_stops_producers_of_the_other_host) {
  for (const WhenFull when_full : {WhenFull::kBlock, WhenFull::kDropNewest}) {
    Channel channel(here_, {.capacity = 1 << 14, .when_full = when_full});
    auto to = receiver();
    EXPECT_FALSE(to.take(0.01));
    Producer producer(there_);
    std::atomic<int> put{0};
    std::thread putting([&] {
      while (put < 5000) put += producer.put(an_item(1, put, 100)) ? 1 : 0;
    });
    for (int full = 0; full < 5;) full = to.take(0.02) ? 0 : full + 1;
    EXPECT_LT(put, 5000);
    int64_t next = 0;
    while (next < 5000) {
      for (const auto& item : seen(channel.get(100, 0))) EXPECT_EQ(item.number, next++);
      to.take(0.01);
    }
    putting.join();
    EXPECT_EQ(total(channel.stats()).refused, 0u);
    EXPECT_EQ(channel.get(1, 0).size(), 0u);
  }
}

TEST_F(ChannelRelayTest, broken_connections_lose_and_repeat_nothing) {
  Channel channel(here_, {.capacity = 1 << 16});
  auto to = receiver();
  EXPECT_FALSE(to.take(0.01));
  Producer producer(there_);
  std::atomic<bool> done{false};
  std::thread putting([&] {
    for (int i = 0; i < 3000; ++i) producer.put(an_item(1, i, 20));
    done = true;
  });
  // Clients with the secret that ask nothing replace the receiver's connection.
  std::thread cutting([&] {
    net::ConnectOptions options;
    options.secret = kItemSecret;
    while (!done) {
      try {
        net::connect(sender_->address(), options);
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the sender has no time for it
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  int64_t next = 0;
  int cuts = 0;
  auto take = [&] {
    try {
      return to.take(0.05).has_value();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kClosed) << error.what();
      ++cuts;
      return true;
    }
  };
  auto look = [&] {
    for (const auto& item : seen(channel.get(5000, 0))) {
      EXPECT_EQ(item.number, next);
      next = item.number + 1;
    }
  };
  while (next < 3000) {
    take();
    look();
  }
  putting.join();
  cutting.join();
  EXPECT_GT(cuts, 0);
  while (take()) {
  }
  look();
  EXPECT_EQ(next, 3000);
}

TEST_F(ChannelRelayTest, a_message_that_is_lost_with_its_connection_is_sent_again) {
  Channel channel(here_);
  std::unique_ptr<Producer> producer;
  constexpr int kCuts = 3;
  int cuts = 0;
  net::ConnectOptions options;
  options.secret = kItemSecret;
  // Called while an answer is awaited: an item is put, and its answer is received by no one.
  options.while_waiting = [&] {
    if (producer == nullptr || cuts == kCuts) return;
    producer->put(an_item(1, cuts++, 5));
    throw Error(Code::kClosed, "test", "cut");
  };
  ItemReceiver to(here_, sender_->address(), options);
  EXPECT_FALSE(to.take(0.01));
  producer = std::make_unique<Producer>(there_);
  while (cuts < kCuts) {
    try {
      to.take(0.01);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kClosed) << error.what();
    }
  }
  std::vector<int64_t> numbers;
  for (int nothing = 0; nothing < 3;) {
    nothing = to.take(0.01) ? 0 : nothing + 1;
    for (const auto& item : seen(channel.get(10, 0))) numbers.push_back(item.number);
  }
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 1, 2}));
}

TEST_F(ChannelRelayTest, producers_of_the_other_host_notice_the_learner_s_end) {
  auto channel = std::make_unique<Channel>(here_);
  auto to = receiver();
  EXPECT_FALSE(to.take(0.01));
  Producer ending(there_), waiting(there_, {.reconnect = true});
  EXPECT_TRUE(waiting.put(an_item(1, 1, 5)));
  channel.reset();
  message_of(Code::kClosed, [&] {
    for (;;) to.take(0.01);
  });
  EXPECT_TRUE(eventually([&] { return !ending.alive(); }));
  message_of(Code::kClosed, [&] { ending.put(an_item(2, 1, 5)); });
  message_of(Code::kTimeout, [&] { to.take(0.05); });
  // The next learner, with another capacity, which the other host's channel has then.
  channel = std::make_unique<Channel>(here_, ChannelOptions{.capacity = 1 << 16});
  EXPECT_FALSE(to.take(1));
  EXPECT_TRUE(waiting.put(an_item(1, 2, 5)));
  EXPECT_EQ(waiting.lost(), 1u);
  EXPECT_EQ(waiting.channel_shape()->capacity, uint64_t{1} << 16);
  take(to, 1);
  EXPECT_EQ(seen(channel->get(10))[0].number, 2);
}

TEST_F(ChannelRelayTest, a_name_that_is_taken_there_is_an_error_here) {
  const Channel channel(here_), other(there_);
  auto to = receiver();
  const std::string why = message_of(Code::kSystem, [&] { to.take(1); });
  EXPECT_NE(why.find(there_), std::string::npos) << why;
}

TEST_F(ChannelRelayTest, invalid_questions_are_not_answered) {
  Channel channel(here_);
  auto to = receiver();
  EXPECT_FALSE(to.take(0.01));
  net::ConnectOptions options;
  options.secret = kItemSecret;
  for (const size_t bytes : {0, 3, 48, 49}) {
    const int before = errors_;
    const auto line = net::connect(sender_->address(), options);
    line->send(std::vector<std::byte>(bytes, std::byte{0x51}));
    EXPECT_FALSE(line->receive(5));
    EXPECT_TRUE(eventually([&] { return errors_ > before; }));
  }
  message_of(Code::kClosed, [&] { to.take(1); });
  Producer producer(there_);
  producer.put(an_item(1, 1, 5));
  take(to, 1);
}

// What a sender answers, as on the wire.
struct Answer {
  uint32_t magic = 0x3149'5250, kind = 4;
  uint64_t number = 0, items = 0;
  uint64_t counts[5] = {};
};

// Answers each question for items with one message of these records; the connection is the test's.
std::string error_of(const std::vector<uint64_t>& records) {
  const Channel channel(a_name(), {.capacity = 1 << 16});
  net::ListenOptions options;
  options.secret = kItemSecret;
  net::Listener listener("tcp://127.0.0.1:0", options);
  std::thread sender([&] {
    try {
      const auto line = listener.accept(5);
      for (;;) {
        const auto question = line->receive(5);
        if (!question) return;
        uint32_t kind;
        std::memcpy(&kind, question->head.data() + 4, 4);
        const Answer answer{.number = kind == 2 ? 1u : 0u, .items = kind == 2 ? 1u : 0u};
        const std::array body{std::as_bytes(std::span(records))};
        line->send(std::as_bytes(std::span(&answer, 1)), std::span(body).first(kind == 2 ? 1 : 0));
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the receiver disconnects
    }
  });
  net::ConnectOptions connect;
  connect.secret = kItemSecret;
  std::string why;
  {
    ItemReceiver to(channel.name(), listener.address(), connect);
    why = message_of(Code::kDataLoss, [&] {
      while (!to.take(1)) {
      }
    });
  }
  sender.join();
  EXPECT_EQ(total(channel.stats()).put, 0u) << why;
  return why;
}

TEST(ItemReceiver, records_with_invalid_sizes_or_contents_are_errors) {
  Scratch scratch;
  ElementSpec spec({Leaf{.name = "x", .dtype = DType::kInt64, .shape = {4}}});
  const uint64_t spec_bytes = spec.bytes().size();
  const uint64_t front = (sizeof(RecordHeader) + spec_bytes + 63) / 64 * 64;
  auto record = [&](uint64_t bytes, uint64_t of_spec, uint64_t all) {
    std::vector<uint64_t> words(all / 8, 7);
    words[0] = bytes;
    words[1] = of_spec;
    std::memcpy(&words[2], spec.bytes().data(), spec_bytes);
    return words;
  };
  const uint64_t whole = front + 64;
  for (const uint64_t bytes : {uint64_t{0}, front - 64, whole + 64, whole - 8, UINT64_MAX}) {
    EXPECT_NE(error_of(record(bytes, spec_bytes, whole)).find("invalid sizes"), std::string::npos);
  }
  error_of(record(whole, UINT64_MAX, whole));  // a spec beyond the message
  error_of(record(whole, 5, whole));           // not a spec
  error_of(record(front, spec_bytes, front));  // no values
}

}  // namespace
}  // namespace penstock::train
