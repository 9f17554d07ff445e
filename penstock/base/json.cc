#include "penstock/base/json.h"

#include <cstdint>

#include "penstock/base/error.h"

namespace penstock {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes.size() ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[word >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

std::vector<std::byte> from_base64(std::string_view text) {
  auto refuse = [] { return Error(Code::kInvalidArgument, "base64", "the text is not base64"); };
  if (text.size() % 4 != 0) throw refuse();
  size_t bytes = text.size() / 4 * 3;
  for (size_t end = text.size(); bytes > 0 && end > text.size() - 2 && text[end - 1] == '=';
       --end) {
    --bytes;
  }
  std::vector<std::byte> made;
  made.reserve(bytes);
  for (size_t i = 0; i < bytes; i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 4; ++j) {
      const char digit = text[i / 3 * 4 + j];
      const size_t value = i + j > bytes ? 0 : kDigits.find(digit);
      if (value >= 64) throw refuse();
      word = word << 6 | static_cast<uint32_t>(value);
    }
    for (size_t j = 0; j < 3 && i + j < bytes; ++j) {
      made.push_back(static_cast<std::byte>(word >> (16 - 8 * j)));
    }
  }
  return made;
}

}  // namespace penstock
