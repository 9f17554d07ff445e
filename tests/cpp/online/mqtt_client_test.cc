#include "penstock/online/mqtt_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "penstock/base/error.h"

namespace penstock::online {
namespace {

using mqtt::Bytes;
using mqtt::Type;
using mqtt::Version;
using namespace std::chrono_literals;

Bytes bytes_of(std::string_view text) {
  const auto from = std::as_bytes(std::span(text));
  return {from.begin(), from.end()};
}

// The other end of a client's connections: the test says what the broker sends.
class Broker {
 public:
  Broker() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    socklen_t length = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }

  uint16_t port() const { return port_; }
  // The next connection of the client, with CONNECT and SUBSCRIBE answered. `session`: the broker
  // has kept it, and the client does not subscribe again.
  void connected(bool session = false, uint8_t code = 0, bool subscribes = true) {
    pollfd waits{listener_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waits, 1, 10'000), 1) << "the client did not connect";
    peer_.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    in_.clear();
    ASSERT_EQ(next(), Type::kConnect);
    say({0x20, 2, session ? 1 : 0, code});
    if (code != 0 || !subscribes || session) return;
    ASSERT_EQ(next(), Type::kSubscribe);
    say({0x90, 3, body_[0], body_[1], 1});
  }
  // The same in version 5, without SUBSCRIBE, with properties of CONNACK.
  void accepted5(std::initializer_list<int> properties = {}) {
    pollfd waits{listener_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waits, 1, 10'000), 1) << "the client did not connect";
    peer_.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_EQ(next(), Type::kConnect);
    const int bytes = static_cast<int>(properties.size());
    say({0x20, 3 + bytes, 0, 0, bytes});
    say(properties);
  }
  void say(std::initializer_list<int> values) {
    Bytes bytes;
    for (int value : values) bytes.push_back(static_cast<std::byte>(value));
    say(bytes);
  }
  void say(const Bytes& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = send(peer_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      ASSERT_GT(n, 0);
      sent += static_cast<size_t>(n);
    }
  }
  void publish(std::string_view text, uint8_t qos, uint16_t id, bool duplicate = false) {
    const Bytes payload = bytes_of(text);
    Bytes out;
    mqtt::append(out, Version::k311, {"t", payload, qos, id, duplicate});
    say(out);
  }
  // The next packet of the client; its body is in body().
  Type next() {
    for (;;) {
      if (const auto frame = mqtt::next_frame(in_, SIZE_MAX)) {
        const Type type = frame->type;
        flags_ = frame->flags;
        body_.clear();
        for (std::byte byte : frame->body) body_.push_back(static_cast<int>(byte));
        in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(frame->bytes));
        return type;
      }
      pollfd waits{peer_.get(), POLLIN, 0};
      if (poll(&waits, 1, 10'000) != 1) throw std::runtime_error("the client sent nothing");
      std::byte buffer[4096];
      const ssize_t bytes = recv(peer_.get(), buffer, sizeof(buffer), 0);
      if (bytes <= 0) throw std::runtime_error("the client has disconnected");
      in_.insert(in_.end(), buffer, buffer + bytes);
    }
  }
  bool silent(std::chrono::milliseconds time) {
    pollfd waits{peer_.get(), POLLIN, 0};
    return in_.empty() && poll(&waits, 1, static_cast<int>(time.count())) == 0;
  }
  int id() const { return body_[0] << 8 | body_[1]; }
  const std::vector<int>& body() const { return body_; }
  int flags() const { return flags_; }
  void disconnect() { peer_.reset(); }

 private:
  os::Fd listener_, peer_;
  uint16_t port_ = 0;
  Bytes in_;
  std::vector<int> body_;
  int flags_ = 0;
};

// Keeps what it is given.
class Kept : public MessageSink {
 public:
  struct Each {
    std::string topic, payload;
    uint64_t token;
    uint16_t id;
    bool duplicate;
  };

  bool put(const Message& message) override {
    std::lock_guard lock(mutex_);
    const auto* text = reinterpret_cast<const char*>(message.payload.data());
    all_.push_back({std::string(message.topic),
                    {text, message.payload.size()},
                    message.token,
                    message.packet_id,
                    message.duplicate});
    changed_.notify_all();
    return accepts;
  }
  bool full() const override { return is_full; }
  void check() const override {}
  void ended(const std::string& error) override {
    std::lock_guard lock(mutex_);
    ended_ = error;
    changed_.notify_all();
  }
  std::vector<Each> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 10s, [&] { return all_.size() >= count; }));
    return all_;
  }
  std::string wait_for_end() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 10s, [&] { return ended_.has_value(); }));
    return ended_.value_or("not ended");
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return all_.size();
  }

  std::atomic<bool> is_full{false}, accepts{true};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Each> all_;
  std::optional<std::string> ended_;
};

struct MqttClientTest : ::testing::Test {
  MqttOptions options() const {
    MqttOptions options;
    options.host = "127.0.0.1";
    options.port = broker.port();
    options.topics = {"t"};
    options.client_id = "me";
    options.clean_start = false;
    return options;
  }
  uint64_t count(const char* what) const { return nlohmann::json::parse(client->state())[what]; }

  Broker broker;
  Kept sink;
  std::unique_ptr<MqttClient> client = std::make_unique<MqttClient>(options());
};

TEST_F(MqttClientTest, acknowledges_in_the_order_of_arrival_when_told) {
  client->start(sink);
  broker.connected();
  for (uint16_t id = 1; id <= 3; ++id) broker.publish("m", 1, id);
  const auto all = sink.wait_for(3);
  EXPECT_TRUE(broker.silent(50ms));
  client->acknowledge(std::vector{all[2].token});
  EXPECT_TRUE(broker.silent(50ms));  // two others arrived before
  client->acknowledge(std::vector{all[1].token, all[0].token});
  for (int id = 1; id <= 3; ++id) {
    EXPECT_EQ(broker.next(), Type::kPuback);
    EXPECT_EQ(broker.id(), id);
  }
  client->stop();
  EXPECT_EQ(broker.next(), Type::kDisconnect);
  EXPECT_EQ(sink.wait_for_end(), "");
  EXPECT_EQ(count("acknowledged"), 3u);
}

TEST_F(MqttClientTest, tokens_of_an_earlier_connection_are_ignored) {
  client->start(sink);
  broker.connected();
  broker.publish("first", 1, 1);
  const auto first = sink.wait_for(1);
  broker.disconnect();
  broker.connected(true);
  client->acknowledge(std::vector{first[0].token});
  EXPECT_TRUE(broker.silent(50ms));
  broker.publish("first", 1, 1, true);
  const auto again = sink.wait_for(2);
  EXPECT_TRUE(again[1].duplicate);
  EXPECT_EQ(again[1].id, 1);
  client->acknowledge(std::vector{first[0].token});
  EXPECT_TRUE(broker.silent(50ms));
  client->acknowledge(std::vector{again[1].token});
  EXPECT_EQ(broker.next(), Type::kPuback);
  EXPECT_EQ(count("reconnects"), 1u);
  EXPECT_EQ(count("duplicates"), 1u);
}

TEST_F(MqttClientTest, a_message_of_qos_2_is_put_once_it_was_acknowledged) {
  client->start(sink);
  broker.connected();
  broker.publish("m", 2, 9);
  auto all = sink.wait_for(1);
  client->acknowledge(std::vector{all[0].token});
  EXPECT_EQ(broker.next(), Type::kPubrec);
  broker.disconnect();  // the broker has not heard it
  broker.connected(true);
  broker.publish("m", 2, 9, true);
  EXPECT_EQ(broker.next(), Type::kPubrec);
  EXPECT_EQ(sink.count(), 1u);
  broker.say({0x62, 2, 0, 9});
  EXPECT_EQ(broker.next(), Type::kPubcomp);
  broker.publish("another", 2, 9);  // the identifier is free again
  EXPECT_EQ(sink.wait_for(2)[1].payload, "another");
}

TEST_F(MqttClientTest, what_the_sink_drops_is_acknowledged_at_once) {
  sink.accepts = false;
  client->start(sink);
  broker.connected();
  broker.publish("m", 1, 4);
  EXPECT_EQ(broker.next(), Type::kPuback);
  EXPECT_EQ(broker.id(), 4);
}

TEST_F(MqttClientTest, reads_nothing_while_the_sink_is_full) {
  client->start(sink);
  broker.connected();
  broker.publish("first", 0, 0);
  sink.wait_for(1);
  sink.is_full = true;
  client->space();  // it looks again
  std::this_thread::sleep_for(50ms);
  for (int i = 0; i < 100; ++i) broker.publish("more", 0, 0);
  std::this_thread::sleep_for(50ms);
  EXPECT_LE(sink.count(), 2u);
  sink.is_full = false;
  client->space();
  EXPECT_EQ(sink.wait_for(101).size(), 101u);
}

TEST_F(MqttClientTest, messages_may_come_in_pieces_and_together) {
  client->start(sink);
  broker.connected();
  Bytes stream;
  for (int i = 0; i < 300; ++i) {
    const Bytes payload = bytes_of(std::string(static_cast<size_t>(i) * 7, 'x'));
    mqtt::append(stream, Version::k311, {"t", payload});
  }
  for (size_t at = 0; at < stream.size(); at += 997) {
    broker.say(
        Bytes(stream.begin() + static_cast<std::ptrdiff_t>(at),
              stream.begin() + static_cast<std::ptrdiff_t>(std::min(at + 997, stream.size()))));
  }
  const auto all = sink.wait_for(300);
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(all[i].payload.size(), i * 7);
}

TEST_F(MqttClientTest, a_large_message_arrives_whole) {
  client->start(sink);
  broker.connected();
  const std::string large(5'000'000, 'y');
  std::thread sends([&] { broker.publish(large, 0, 0); });
  EXPECT_EQ(sink.wait_for(1)[0].payload, large);
  sends.join();
}

TEST_F(MqttClientTest, publishes_until_the_broker_has_it) {
  client->start(sink);
  broker.connected();
  client->publish("out", bytes_of("zero"), 0);
  EXPECT_EQ(broker.next(), Type::kPublish);
  client->publish("out", bytes_of("one"), 1);
  EXPECT_EQ(broker.next(), Type::kPublish);
  EXPECT_EQ(broker.flags(), 2);  // QoS 1, not a duplicate
  broker.disconnect();
  broker.connected(true);
  EXPECT_EQ(broker.next(), Type::kPublish);
  EXPECT_EQ(broker.flags(), 8 | 2);
  const int id = broker.body()[5] << 8 | broker.body()[6];
  broker.say({0x40, 2, id >> 8, id & 255});
  client->publish("out", bytes_of("two"), 2);
  EXPECT_EQ(broker.next(), Type::kPublish);
  EXPECT_EQ(broker.flags(), 4);
  const int second = broker.body()[5] << 8 | broker.body()[6];
  broker.say({0x50, 2, second >> 8, second & 255});
  EXPECT_EQ(broker.next(), Type::kPubrel);
  broker.disconnect();
  broker.connected(true);
  EXPECT_EQ(broker.next(), Type::kPubrel);  // not the message again
  broker.say({0x70, 2, second >> 8, second & 255});
  while (count("on_their_way") != 0) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(count("published"), 2u);
}

TEST_F(MqttClientTest, a_client_that_only_publishes_does_not_subscribe) {
  EXPECT_THROW(client->publish("t", bytes_of("m"), 1), Error) << "not started";
  EXPECT_TRUE(client->flush(0));
  client->start_publishing();
  client->start_publishing();  // does nothing
  EXPECT_THROW(client->start(sink), Error);
  std::thread publisher([&] { client->publish("t", bytes_of("m"), 1); });  // waits to be connected
  broker.connected(false, 0, false);
  publisher.join();
  EXPECT_EQ(broker.next(), Type::kPublish);
  EXPECT_FALSE(client->flush(0.05)) << "not acknowledged";
  const int id = broker.body()[3] << 8 | broker.body()[4];
  broker.say({0x40, 2, id >> 8, id & 255});
  EXPECT_TRUE(client->flush(10));
  client->stop();
  EXPECT_THROW(client->publish("t", bytes_of("m"), 1), Error) << "stopped";
}

TEST_F(MqttClientTest, a_broker_that_forgot_the_session_gets_messages_again) {
  client->start_publishing();
  std::thread publisher([&] { client->publish("t", bytes_of("m"), 2); });
  broker.connected(false, 0, false);
  publisher.join();
  ASSERT_EQ(broker.next(), Type::kPublish);
  const int id = broker.body()[3] << 8 | broker.body()[4];
  broker.say({0x50, 2, id >> 8, id & 255});
  ASSERT_EQ(broker.next(), Type::kPubrel);
  broker.disconnect();
  broker.connected(true, 0, false);
  EXPECT_EQ(broker.next(), Type::kPubrel) << "the broker has the message";
  broker.disconnect();
  broker.connected(false, 0, false);
  ASSERT_EQ(broker.next(), Type::kPublish) << "the broker has forgotten it";
  EXPECT_EQ(broker.flags() & 8, 0) << "it is not a duplicate for this broker";
  EXPECT_EQ(broker.body().back(), 'm');
}

TEST_F(MqttClientTest, no_more_than_20_messages_of_qos_2_are_on_their_way) {
  client->start_publishing();
  std::thread publisher([&] {
    for (int i = 0; i < 50; ++i) client->publish("t", bytes_of("m"), 2);
  });
  broker.connected(false, 0, false);
  publisher.join();
  std::vector<int> ids;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(broker.next(), Type::kPublish);
    ids.push_back(broker.body()[3] << 8 | broker.body()[4]);
  }
  EXPECT_TRUE(broker.silent(50ms));
  broker.say({0x50, 2, ids[0] >> 8, ids[0] & 255});
  ASSERT_EQ(broker.next(), Type::kPubrel);
  EXPECT_TRUE(broker.silent(50ms));
  broker.say({0x70, 2, ids[0] >> 8, ids[0] & 255});
  EXPECT_EQ(broker.next(), Type::kPublish);
}

TEST_F(MqttClientTest, a_refusal_that_stays_ends_it) {
  client->start(sink);
  broker.connected(false, 5);
  EXPECT_NE(sink.wait_for_end().find("not authorized"), std::string::npos);
  EXPECT_THROW(client->publish("out", bytes_of("m"), 1), Error);
}

TEST_F(MqttClientTest, a_busy_broker_is_tried_again) {
  client->start(sink);
  broker.connected(false, 3);
  broker.connected();
  broker.publish("m", 0, 0);
  sink.wait_for(1);
}

TEST_F(MqttClientTest, malformed_bytes_lose_the_connection_not_the_client) {
  client->start(sink);
  broker.connected();
  broker.say({0x36, 3, 0, 0, 0});  // QoS 3
  broker.connected(true);
  EXPECT_NE(client->state().find("reconnects"), std::string::npos);
  broker.publish("m", 0, 0);
  EXPECT_EQ(sink.wait_for(1)[0].payload, "m");
}

TEST_F(MqttClientTest, no_broker_in_time_is_an_error) {
  MqttOptions none = options();
  {
    Broker gone;
    none.port = gone.port();
  }
  none.connect_timeout_s = 0.2;
  MqttClient lost(none);
  lost.start(sink);
  EXPECT_NE(sink.wait_for_end().find("cannot connect to 127.0.0.1"), std::string::npos);
}

TEST_F(MqttClientTest, a_broker_that_does_not_answer_is_an_error_in_time) {
  MqttOptions silent = options();
  silent.connect_timeout_s = 0.5;
  const auto begin = std::chrono::steady_clock::now();
  MqttClient waits(silent);
  waits.start(sink);
  EXPECT_NE(sink.wait_for_end().find("did not answer"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST_F(MqttClientTest, pings_while_nothing_is_sent) {
  MqttOptions pings = options();
  pings.keep_alive_s = 1;
  MqttClient quiet(pings);
  quiet.start(sink);
  broker.connected();
  EXPECT_EQ(broker.next(), Type::kPingreq);
  broker.say({0xD0, 0});
  EXPECT_EQ(broker.next(), Type::kPingreq);
  broker.connected(true);  // no answer: another connection
}

TEST_F(MqttClientTest, pings_while_the_sink_is_full_and_no_answer_is_read) {
  MqttOptions pings = options();
  pings.keep_alive_s = 1;
  MqttClient behind(pings);
  behind.start(sink);
  broker.connected();
  sink.is_full = true;
  broker.publish("first", 0, 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(broker.next(), Type::kPingreq);
  broker.say({0xD0, 0, 0xD0, 0, 0xD0, 0, 0xD0, 0});
  sink.is_full = false;
  behind.space();
  EXPECT_EQ(sink.wait_for(1).size(), 1u);
  EXPECT_EQ(broker.next(), Type::kPingreq);
}

TEST_F(MqttClientTest, a_client_that_was_replaced_by_another_of_its_name_ends) {
  MqttOptions five = options();
  five.version = Version::k5;
  MqttClient older(five);
  older.start(sink);
  broker.accepted5();
  broker.say({0xE0, 2, 0x8E, 0});
  EXPECT_NE(sink.wait_for_end().find("another client has connected with the client_id \"me\""),
            std::string::npos);
}

TEST_F(MqttClientTest, a_message_that_the_broker_does_not_take_is_refused) {
  MqttOptions five = options();
  five.version = Version::k5;
  MqttClient sender(five);
  sender.start_publishing();
  broker.accepted5({0x27, 0, 0, 0, 20});  // at most 20 bytes
  EXPECT_THROW(sender.publish("t", bytes_of(std::string(20, 'x')), 1), Error);
  sender.publish("t", bytes_of("m"), 1);
  EXPECT_EQ(broker.next(), Type::kPublish);
  EXPECT_EQ(broker.body().back(), 'm');
}

TEST_F(MqttClientTest, a_broker_that_ends_each_connection_is_tried_less_and_less_often) {
  client->start(sink);
  broker.connected();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    broker.disconnect();
    broker.connected();
  }
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 1s);  // at least 0.05 + 0.1 + ... + 0.8
}

TEST_F(MqttClientTest, stops_at_any_time) {
  client->start(sink);
  client->stop();
  client->stop();
  EXPECT_EQ(sink.wait_for_end(), "");
  MqttClient never(options());
}

TEST(MqttOptions, a_session_needs_a_name) {
  EXPECT_THROW(MqttClient({.topics = {"t"}, .clean_start = false}), Error);
  EXPECT_THROW(MqttClient({.qos = 3}), Error);
}

}  // namespace
}  // namespace penstock::online
