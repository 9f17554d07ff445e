#include "penstock/online/recent_ids.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "penstock/online/message_log.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock::online {
namespace {

Message redelivered(uint16_t id, std::string_view payload) {
  Message message;
  message.topic = "t";
  message.payload = std::as_bytes(std::span(payload));
  message.packet_id = id;
  message.duplicate = true;
  return message;
}

uint32_t crc_of(const Message& message) {
  return RecentIds::checksum(message.topic, message.payload);
}

TEST(RecentIds, a_redelivery_has_the_identifier_and_the_bytes_of_its_first_delivery) {
  RecentIds ids;
  const Message one = redelivered(7, "one"), two = redelivered(7, "two");
  EXPECT_FALSE(ids.seen(one, crc_of(one)));
  ids.note({7, crc_of(one)});
  EXPECT_TRUE(ids.seen(one, crc_of(one)));
  EXPECT_FALSE(ids.seen(two, crc_of(two)));
  Message first = one;
  first.duplicate = false;
  EXPECT_FALSE(ids.seen(first, crc_of(first))) << "a new message with equal bytes";
}

TEST(RecentIds, an_identifier_is_forgotten_before_the_broker_uses_it_again) {
  RecentIds ids;
  const Message constant = redelivered(1, "0");
  ids.note({1, crc_of(constant)});
  for (uint32_t id = 2; id <= 32'768; ++id) ids.note({static_cast<uint16_t>(id), 0});
  EXPECT_TRUE(ids.seen(constant, crc_of(constant)));
  EXPECT_EQ(ids.in_order().size(), 32'768U);
  EXPECT_EQ(ids.in_order().front().packet_id, 1);
  ids.note({32'769, 0});
  EXPECT_FALSE(ids.seen(constant, crc_of(constant)));
  EXPECT_EQ(ids.in_order().front().packet_id, 2);
}

class LogOfIds : public ::testing::Test {
 protected:
  LogOptions options(uint64_t segment_bytes = 1 << 20) const {
    return {.folder = folder_, .fsync_ns = 0, .segment_bytes = segment_bytes};
  }
  std::filesystem::path first_file() const {
    return std::filesystem::path(folder_) / "00000000000000000000.log";
  }
  void append(MessageLog& log, const Message& message) {
    log.append(message, crc_of(message));
    log.sync();
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

// A process that is killed when it has written a file's head, and not the messages behind it.
TEST_F(LogOfIds, the_head_of_a_file_has_no_identifiers_of_messages_that_are_not_in_the_log) {
  const Message message = redelivered(5, "five");
  uintmax_t whole = 0;
  {
    MessageLog log(options(), nullptr);
    append(log, message);
    whole = std::filesystem::file_size(first_file());
  }
  std::filesystem::resize_file(first_file(), whole - 1);
  MessageLog log(options(), nullptr);
  EXPECT_EQ(log.end(), 0U);
  EXPECT_FALSE(log.ids().seen(message, crc_of(message)));
}

TEST_F(LogOfIds, identifiers_outlive_the_file_of_their_message) {
  const Message message = redelivered(5, "five");
  {
    MessageLog log(options(1), nullptr);  // a file for each write
    append(log, message);
    append(log, redelivered(6, "six"));
    log.trim(1);
    EXPECT_EQ(log.begin(), 1U);
  }
  MessageLog log(options(), nullptr);
  EXPECT_TRUE(log.ids().seen(message, crc_of(message)));
}

}  // namespace
}  // namespace penstock::online
