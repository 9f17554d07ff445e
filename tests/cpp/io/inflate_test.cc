#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

#include "memory_files.h"
#include "penstock/base/error.h"
#include "penstock/io/compression.h"

namespace penstock {
namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// Forty lines, compressed by Python's gzip and zlib.
const std::string kDeflated =
    "5dd13b0e83401443d19e55cc12b09d0f2c878248912643cdee232af46e79bb23bb7fc7dee6767cda6f1be7d4af"
    "544dd74ccd47cd67cd57cd77cda5e60a06597009304126d0049b801374024ff0193e7337f80c9fe1337c86cff0"
    "193ec317f8025f782c7c812ff005bec017f872fbfe";
const std::string kGzip = from_hex("1f8b0800000000000203" + kDeflated + "387509a276020000");
const std::string kZlib = from_hex("78da" + kDeflated + "cbb1c671");

std::string forty_lines() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line " + std::to_string(i) + " of many\n";
  return text;
}

// A member with stored (uncompressed) bytes.
std::string stored(const std::string& text) {
  uint32_t crc = ~0u;
  for (char byte : text) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  auto number = [](uint64_t value, int bytes) {
    std::string made;
    for (; bytes > 0; --bytes, value >>= 8) made += static_cast<char>(value);
    return made;
  };
  std::string made = from_hex("1f8b0800000000000003");
  for (size_t begin = 0; begin == 0 || begin < text.size(); begin += 65'535) {
    const std::string block = text.substr(begin, 65'535);
    made += begin + 65'535 >= text.size() ? '\1' : '\0';
    made += number(block.size(), 2) + number(~block.size(), 2) + block;
  }
  return made + number(~crc, 4) + number(text.size(), 4);
}

struct InflateTest : ::testing::Test {
  // Inflates everything, so many bytes at a time; returns the text or the code of an error.
  std::string inflate(const std::string& bytes, Compression compression, size_t step = 1000) {
    files["file"] = bytes;
    Inflate source(files.open("file"), compression);
    std::string text, part(step, '?');
    code.reset();
    try {
      while (size_t got = source.read(std::as_writable_bytes(std::span(part)))) {
        text += part.substr(0, got);
      }
      EXPECT_EQ(source.used(), bytes.size());
    } catch (const Error& error) {
      code = error.code();
      EXPECT_LE(source.used(), bytes.size());
      EXPECT_THROW(source.read(std::as_writable_bytes(std::span(part))), Error) << "again";
    }
    return text;
  }
  MemoryFiles files;
  std::optional<Code> code;
};

TEST_F(InflateTest, gives_what_was_compressed) {
  for (size_t step : {1, 2, 7, 629, 630, 631, 100'000}) {
    EXPECT_EQ(inflate(kGzip, Compression::kGzip, step), forty_lines());
    EXPECT_FALSE(code);
    EXPECT_EQ(inflate(kZlib, Compression::kZlib, step), forty_lines());
    EXPECT_FALSE(code);
  }
}

TEST_F(InflateTest, members_follow_one_another) {
  const std::string large(200'000, 'x');  // more than one read
  const std::string bytes = stored(large) + kGzip + stored("") + kGzip + stored(large);
  const std::string expected = large + forty_lines() + forty_lines() + large;
  for (size_t step : {100, 4096, 1'000'000}) {
    EXPECT_EQ(inflate(bytes, Compression::kGzip, step), expected);
    EXPECT_FALSE(code);
  }
}

// The pieces read from the file may end anywhere.
TEST_F(InflateTest, a_member_may_begin_and_end_anywhere) {
  const size_t both = 2 * kGzip.size();
  for (size_t shift = 0; shift < both; ++shift) {
    const std::string text(65'536 - 23 - both + shift, 'x');
    EXPECT_EQ(inflate(stored(text) + kGzip + kGzip, Compression::kGzip, 50'000),
              text + forty_lines() + forty_lines())
        << shift;
    EXPECT_FALSE(code) << shift;
  }
}

TEST_F(InflateTest, zeros_may_fill_up_the_end_but_nothing_else) {
  EXPECT_EQ(inflate(kGzip + std::string(100'000, '\0'), Compression::kGzip), forty_lines());
  EXPECT_FALSE(code);
  EXPECT_EQ(inflate(kGzip + "garbage", Compression::kGzip), forty_lines());
  EXPECT_EQ(code, Code::kDataLoss);
  EXPECT_EQ(inflate(kZlib + kZlib, Compression::kZlib), forty_lines());
  EXPECT_EQ(code, Code::kDataLoss);
}

TEST_F(InflateTest, nothing_comes_of_an_empty_file) {
  EXPECT_EQ(inflate("", Compression::kGzip), "");
  EXPECT_FALSE(code);
}

TEST_F(InflateTest, cut_off_at_any_byte_it_is_an_error_after_what_was_there) {
  for (auto [bytes, compression] :
       {std::pair(kGzip, Compression::kGzip), {kZlib, Compression::kZlib}}) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string text = inflate(bytes.substr(0, cut), compression);
      EXPECT_EQ(code, Code::kDataLoss) << cut;
      EXPECT_TRUE(forty_lines().starts_with(text)) << cut;
    }
  }
}

TEST_F(InflateTest, a_wrong_byte_is_an_error) {
  for (size_t at = 10; at < kGzip.size(); ++at) {  // no checksum covers the bytes before
    std::string bytes = kGzip;
    bytes[at] ^= 0x10;
    inflate(bytes, Compression::kGzip);
    EXPECT_EQ(code, Code::kDataLoss) << at;
  }
}

TEST_F(InflateTest, the_other_compression_or_none_is_an_error) {
  inflate(kGzip, Compression::kZlib);
  EXPECT_EQ(code, Code::kDataLoss);
  inflate(kZlib, Compression::kGzip);
  EXPECT_EQ(code, Code::kDataLoss);
  inflate(forty_lines(), Compression::kGzip);
  EXPECT_EQ(code, Code::kDataLoss);
}

}  // namespace
}  // namespace penstock
