#include "penstock/online/mqtt_packets.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "penstock/base/error.h"

namespace penstock::online::mqtt {
namespace {

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
constexpr size_t kNoLimit = SIZE_MAX;

// Bytes written by hand after the standard's figures.
TEST(MqttPackets, connect_is_as_in_the_standard) {
  Bytes out;
  append(out, Connect{.client_id = "ab", .keep_alive_s = 10, .user = "u", .password = "p"});
  EXPECT_EQ(out, bytes_of({0x10, 20, 0, 4,   'M', 'Q', 'T', 'T', 4, 0xC2, 0,
                           10,   0,  2, 'a', 'b', 0,   1,   'u', 0, 1,    'p'}));
  out.clear();
  append(out, Connect{.version = Version::k5,
                      .client_id = "c",
                      .clean_start = false,
                      .session_expiry_s = 258,
                      .max_packet_bytes = 65536});
  EXPECT_EQ(out, bytes_of({0x10, 24, 0, 4, 'M', 'Q',  'T', 'T', 5, 0, 0, 60, 10,
                           0x11, 0,  0, 1, 2,   0x27, 0,   1,   0, 0, 0, 1,  'c'}));
}

TEST(MqttPackets, subscribe_publish_and_acknowledgements_are_as_in_the_standard) {
  Bytes out;
  const std::string filters[] = {"a/+", "b"};
  append_subscribe(out, Version::k311, 7, filters, 1);
  EXPECT_EQ(out, bytes_of({0x82, 12, 0, 7, 0, 3, 'a', '/', '+', 1, 0, 1, 'b', 1}));
  out.clear();
  append_subscribe(out, Version::k5, 7, std::span(filters).first(1), 2);
  EXPECT_EQ(out, bytes_of({0x82, 9, 0, 7, 0, 0, 3, 'a', '/', '+', 0x12}));
  out.clear();
  const Bytes payload = bytes_of({1, 2});
  append(out, Version::k311, Publish{"t", payload});
  EXPECT_EQ(out, bytes_of({0x30, 5, 0, 1, 't', 1, 2}));
  out.clear();
  append(out, Version::k5, Publish{"t", payload, 2, 300, true});
  EXPECT_EQ(out, bytes_of({0x3C, 8, 0, 1, 't', 1, 44, 0, 1, 2}));
  out.clear();
  append_acknowledgement(out, Type::kPuback, 258);
  append_acknowledgement(out, Type::kPubrel, 3);
  EXPECT_EQ(out, bytes_of({0x40, 2, 1, 2, 0x62, 2, 0, 3}));
}

TEST(MqttPackets, a_message_is_read_as_it_was_written) {
  for (const Version version : {Version::k311, Version::k5}) {
    for (const size_t size : {0, 1, 120, 200, 20'000, 3'000'000}) {
      for (const uint8_t qos : {0, 1, 2}) {
        const Bytes payload(size, std::byte{9});
        Bytes out;
        append(out, version, {"sensors/1", payload, qos, uint16_t(qos == 0 ? 0 : 77), qos == 1});
        out.push_back(std::byte{0x30});  // the next packet
        const auto frame = next_frame(out, kNoLimit);
        ASSERT_TRUE(frame.has_value());
        EXPECT_EQ(frame->bytes, out.size() - 1);
        const Publish read = read_publish(*frame, version);
        EXPECT_EQ(read.topic, "sensors/1");
        EXPECT_EQ(text_of(read.payload), text_of(payload));
        EXPECT_EQ(read.qos, qos);
        EXPECT_EQ(read.id, qos == 0 ? 0 : 77);
        EXPECT_EQ(read.duplicate, qos == 1);
      }
    }
  }
}

TEST(MqttPackets, a_packet_that_is_not_whole_is_waited_for) {
  Bytes out;
  append(out, Version::k311, {"topic", Bytes(300, std::byte{1}), 1, 5});
  for (size_t size = 0; size < out.size(); ++size) {
    EXPECT_FALSE(next_frame(std::span(out).first(size), kNoLimit).has_value()) << size;
  }
  EXPECT_TRUE(next_frame(out, out.size()).has_value());
  EXPECT_THROW(next_frame(std::span(out).first(4), out.size() - 1), Error);
}

TEST(MqttPackets, properties_are_read_or_skipped) {
  // Session present, success; receive maximum 20, keep alive 5, assigned id "x", a user property.
  const Bytes connack = bytes_of({0x20, 21, 1,   0,    18, 0x21, 0,   20, 0x13, 0,   5,  0x12,
                                  0,    1,  'x', 0x26, 0,  1,    'a', 0,  2,    'b', 'c'});
  const Connack read = read_connack(*next_frame(connack, kNoLimit), Version::k5);
  EXPECT_TRUE(read.session_present);
  EXPECT_EQ(read.code, 0);
  EXPECT_EQ(read.receive_maximum, 20);
  EXPECT_EQ(read.keep_alive_s, 5);

  const Bytes refused = bytes_of({0x20, 8, 0, 0x87, 5, 0x1F, 0, 2, 'n', 'o'});
  const Connack no = read_connack(*next_frame(refused, kNoLimit), Version::k5);
  EXPECT_EQ(no.reason, "no");
  EXPECT_TRUE(lasts(no.code, Version::k5));
  EXPECT_FALSE(lasts(0x88, Version::k5));
  EXPECT_TRUE(lasts(4, Version::k311));
  EXPECT_FALSE(lasts(3, Version::k311));

  // A message with content type, expiry and subscription identifier.
  const Bytes message =
      bytes_of({0x30, 17, 0, 1, 't', 12, 0x03, 0, 1, 'j', 0x02, 0, 0, 0, 9, 0x0B, 0x81, 0x01, 'p'});
  EXPECT_EQ(text_of(read_publish(*next_frame(message, kNoLimit), Version::k5).payload), "p");
}

TEST(MqttPackets, acknowledgements_and_answers_are_read) {
  const Bytes puback = bytes_of({0x40, 2, 1, 2});
  EXPECT_EQ(read_acknowledgement(*next_frame(puback, kNoLimit), Version::k5).id, 258);
  const Bytes pubrec = bytes_of({0x50, 4, 1, 2, 0x97, 0});
  EXPECT_EQ(read_acknowledgement(*next_frame(pubrec, kNoLimit), Version::k5).code, 0x97);
  const Bytes suback = bytes_of({0x90, 4, 0, 7, 1, 0x80});
  const Suback read = read_suback(*next_frame(suback, kNoLimit), Version::k311);
  EXPECT_EQ(read.id, 7);
  EXPECT_EQ(read.codes, (std::vector<uint8_t>{1, 0x80}));
  const Bytes end = bytes_of({0xE0, 2, 0x8E, 0});
  EXPECT_NE(read_disconnect(*next_frame(end, kNoLimit)).find("another client"), std::string::npos);
}

TEST(MqttPackets, a_topic_that_cannot_be_published_to_is_refused) {
  Bytes out;
  const Bytes none;
  const std::string too_long(70'000, 'a');
  for (const std::string& topic : {std::string(), std::string("a/+"), std::string("#"), too_long}) {
    EXPECT_THROW(append(out, Version::k311, {topic, none}), Error) << topic.size();
  }
  EXPECT_TRUE(out.empty());
}

TEST(MqttPackets, a_filter_has_wildcards_for_whole_levels) {
  for (const char* good : {"t", "#", "+", "a/#", "+/b/+", "/", "$share/group/a/#", "$SYS/x"}) {
    EXPECT_NO_THROW(check_filter(good)) << good;
  }
  for (const char* bad : {"", "a#", "#/a", "a/#/b", "a+", "+a/b", "$share/group", "$share//a",
                          "$share/gr+oup/a", "$share/group/"}) {
    EXPECT_THROW(check_filter(bad), Error) << bad;
  }
}

// Whatever the bytes, a packet is read, waited for or refused.
TEST(MqttPackets, damaged_packets_are_errors) {
  std::mt19937 random(1);
  Bytes whole[4];
  append(whole[0], Version::k5, {"topic", Bytes(10, std::byte{1}), 1, 5});
  whole[1] = bytes_of({0x20, 21, 1,   0,    18, 0x21, 0,   20, 0x13, 0,   5,  0x12,
                       0,    1,  'x', 0x26, 0,  1,    'a', 0,  2,    'b', 'c'});
  whole[2] = bytes_of({0x90, 5, 0, 7, 0, 1, 0x80});
  whole[3] = bytes_of({0x50, 4, 1, 2, 0x97, 0});
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes = whole[round % 4];
    for (int changes = round % 3 + 1; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random() % 256);
    }
    bytes.resize(random() % 4 == 0 ? random() % bytes.size() : bytes.size());
    try {
      const auto frame = next_frame(bytes, 1000);
      if (!frame) continue;
      ASSERT_LE(frame->bytes, bytes.size());
      for (const Version version : {Version::k311, Version::k5}) {
        switch (frame->type) {
          case Type::kPublish:
            read_publish(*frame, version);
            break;
          case Type::kConnack:
            read_connack(*frame, version);
            break;
          case Type::kSuback:
            read_suback(*frame, version);
            break;
          case Type::kDisconnect:
            read_disconnect(*frame);
            break;
          default:
            read_acknowledgement(*frame, version);
        }
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace penstock::online::mqtt
