#include "penstock/io/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "bytes.h"

namespace penstock {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, gives_the_published_values) {
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(crc32c(bytes), 0x8A9136AAu);
  bytes.assign(32, std::byte{0xFF});
  EXPECT_EQ(crc32c(bytes), 0x62A8AB43u);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(bytes), 0x46DD794Eu);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(bytes), 0x113FDB5Cu);
  std::vector<std::byte> read_command(48);
  for (auto [place, value] : {std::pair(0, 0x01),
                              {1, 0xC0},
                              {16, 0x14},
                              {22, 0x04},
                              {27, 0x14},
                              {31, 0x18},
                              {32, 0x28},
                              {40, 0x02}}) {
    read_command[place] = static_cast<std::byte>(value);
  }
  EXPECT_EQ(crc32c(read_command), 0xD9963A56u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
}

TEST(Crc32c, of_nothing_is_zero) { EXPECT_EQ(crc32c({}), 0u); }

TEST(Crc32c, of_pieces_is_that_of_the_whole) {
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  const std::span all(bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    ASSERT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(bytes)) << cut;
  }
}

uint32_t one_bit_after_the_other(std::span<const std::byte> bytes) {
  uint32_t state = ~0u;
  for (std::byte byte : bytes) {
    state ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0x82F63B78u : 0);
  }
  return ~state;
}

TEST(Crc32c, agrees_with_the_definition_at_every_length_and_alignment) {
  std::vector<std::byte> bytes(700);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + (i >> 5));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t length = 0; length + begin <= bytes.size(); length += 1 + length / 16) {
      const auto part = std::span(bytes).subspan(begin, length);
      ASSERT_EQ(crc32c(part), one_bit_after_the_other(part)) << begin << " " << length;
      if (length == 8) {
        ASSERT_EQ(crc32c_of_8(part.data()), crc32c(part));
      }
    }
  }
}

// As TensorFlow writes it: the length field of a record of 32 bytes.
TEST(Crc32c, has_the_masked_form_of_TFRecord) {
  const uint64_t length = 32;
  EXPECT_EQ(masked(crc32c(std::as_bytes(std::span(&length, 1)))), 0x50A9ED29u);
}

}  // namespace
}  // namespace penstock
