#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/text.h"

namespace penstock {
namespace {

bool valid(std::string_view text) { return is_utf8(std::as_bytes(std::span(text))); }

// The bits of a number in this many bytes, also if that is invalid UTF-8.
std::string encoded(uint32_t number, int bytes) {
  if (bytes == 1) return {static_cast<char>(number)};
  std::string text;
  constexpr unsigned kFirst[] = {0, 0, 0xC0, 0xE0, 0xF0, 0xF8};
  text += static_cast<char>(kFirst[bytes] | number >> (6 * (bytes - 1)));
  for (int i = bytes - 2; i >= 0; --i) text += static_cast<char>(0x80 | (number >> (6 * i) & 0x3F));
  return text;
}

// A simple validator: decodes the numbers and checks them.
bool plainly(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const size_t bytes = first < 0x80             ? 1
                         : (first & 0xE0) == 0xC0 ? 2
                         : (first & 0xF0) == 0xE0 ? 3
                         : (first & 0xF8) == 0xF0 ? 4
                                                  : 0;
    if (bytes == 0 || bytes > text.size() - at) return false;
    uint32_t number = bytes == 1 ? first : first & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      if ((next & 0xC0) != 0x80) return false;
      number = number << 6 | (next & 0x3F);
    }
    constexpr uint32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};
    if (number < kMin[bytes] || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) {
      return false;
    }
    at += bytes;
  }
  return true;
}

TEST(Utf8, every_character_is_and_no_other_number) {
  for (uint32_t number = 0; number < 0x200000; ++number) {
    const bool character = number <= 0x10FFFF && (number < 0xD800 || number >= 0xE000);
    const int bytes = number < 0x80 ? 1 : number < 0x800 ? 2 : number < 0x10000 ? 3 : 4;
    ASSERT_EQ(valid(encoded(number, bytes)), character) << number;
    for (int more = bytes + 1; more <= 4; ++more) {
      ASSERT_FALSE(valid(encoded(number, more))) << number << " in " << more << " bytes";
    }
  }
}

TEST(Utf8, what_is_none_is_none_wherever_it_stands) {
  EXPECT_TRUE(valid(""));
  EXPECT_TRUE(valid(std::string_view("\0", 1)));
  const std::string wrong[] = {"\x80",
                               "\xBF",
                               "\xC0\x80",
                               "\xC1\xBF",
                               "\xC2",
                               "\xC2\xC2\x80",
                               "\xE2\x82",
                               "\xE2",
                               "\xE0\x9F\xBF",
                               "\xED\xA0\x80",
                               "\xED\xBF\xBF",
                               "\xF0\x8F\xBF\xBF",
                               "\xF0\x9F\x98",
                               "\xF4\x90\x80\x80",
                               "\xF5\x80\x80\x80",
                               "\xF8\x88\x80\x80\x80",
                               "\xFE",
                               "\xFF",
                               "\xE2\x28\xA1",
                               "\xE2\x82\x28",
                               "\xF0\x9F\x28\x80",
                               "\xC3\x28"};
  const std::string right[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xEF\xBB\xBF", "\xF0\x9F\x98\x80"};
  for (size_t before = 0; before < 40; ++before) {
    for (size_t behind = 0; behind < 40; ++behind) {
      const std::string left(before, 'x'), rest(behind, 'y');
      for (const std::string& text : right) ASSERT_TRUE(valid(left + text + rest));
      for (const std::string& text : wrong) {
        ASSERT_FALSE(valid(left + text + rest)) << before << ", " << behind;
        ASSERT_FALSE(valid(left + "\xC3\xA9" + rest + text));
      }
    }
  }
}

TEST(Utf8, what_is_none_can_be_shown) {
  EXPECT_EQ(escape_invalid_utf8(""), "");
  EXPECT_EQ(escape_invalid_utf8("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(escape_invalid_utf8("\xFF/caf\xC3\xA9\xE2\x82/x\xC0"),
            "\\xff/caf\xC3\xA9\\xe2\\x82/x\\xc0");
}

TEST(Utf8, random_bytes_are_judged_as_plain_code_does) {
  std::mt19937 random(1);
  int right = 0;
  for (int n = 0; n < 200'000; ++n) {
    std::string text;
    while (random() % 16 != 0) {
      // Whole characters mostly: random bytes alone are hardly ever UTF-8.
      const uint32_t number = random() % 0x110000 >> random() % 21;
      text += encoded(number, number < 0x80 ? 1 : number < 0x800 ? 2 : number < 0x10000 ? 3 : 4);
    }
    for (uint32_t wrong = random() % 3; wrong > 0 && !text.empty(); --wrong) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) text.resize(random() % (text.size() + 1));
    ASSERT_EQ(valid(text), plainly(text));
    ASSERT_EQ(valid(text + std::string(40, 'x')), plainly(text));  // uses vectors for every length
    right += valid(text);
  }
  EXPECT_GT(right, 20'000);
  EXPECT_LT(right, 180'000);
}

}  // namespace
}  // namespace penstock
