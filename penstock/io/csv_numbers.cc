#include "penstock/io/csv_numbers.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace penstock {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <class T>
bool integer(std::string_view text, std::byte* to) {
  T value;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return false;
  std::memcpy(to, &value, sizeof(T));
  return true;
}

// Of a number that no double holds: it is too near to 0, and not too large.
bool is_tiny(std::string_view text) {
  const size_t exponent = text.find_first_of("eE");
  if (exponent != text.npos) return exponent + 1 < text.size() && text[exponent + 1] == '-';
  return text.substr(0, text.find('.')).find_first_of("123456789") == text.npos;
}

template <class T>
bool floating(std::string_view text, std::byte* to) {
  double value;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && at == end && is_tiny(text)) {
    value = text[0] == '-' ? -0.0 : 0.0;
  } else if (error != std::errc() || at != end) {
    return false;
  }
  const auto narrow = static_cast<T>(value);
  if (std::isinf(narrow) && !std::isinf(value)) return false;
  std::memcpy(to, &narrow, sizeof(T));
  return true;
}

// To the nearest one, and not to the nearest double first.
template <>
bool floating<float>(std::string_view text, std::byte* to) {
  float value;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && at == end && is_tiny(text)) {
    value = text[0] == '-' ? -0.0F : 0.0F;
  } else if (error != std::errc() || at != end) {
    return false;
  }
  std::memcpy(to, &value, sizeof(value));
  return true;
}

bool boolean(std::string_view text, std::byte* to) {
  const bool yes = text == "1" || text == "true" || text == "True" || text == "TRUE";
  if (!yes && text != "0" && text != "false" && text != "False" && text != "FALSE") return false;
  *to = std::byte{yes};
  return true;
}

}  // namespace

bool read_number(std::string_view text, DType dtype, std::byte* to) {
  text = trimmed(text);
  switch (dtype) {
    case DType::kBool:
      return boolean(text, to);
    case DType::kInt8:
      return integer<int8_t>(text, to);
    case DType::kInt16:
      return integer<int16_t>(text, to);
    case DType::kInt32:
      return integer<int32_t>(text, to);
    case DType::kInt64:
      return integer<int64_t>(text, to);
    case DType::kUint8:
      return integer<uint8_t>(text, to);
    case DType::kUint16:
      return integer<uint16_t>(text, to);
    case DType::kUint32:
      return integer<uint32_t>(text, to);
    case DType::kUint64:
      return integer<uint64_t>(text, to);
    case DType::kFloat32:
      return floating<float>(text, to);
    case DType::kFloat64:
      return floating<double>(text, to);
    default:
      return false;
  }
}

bool is_csv_number(DType dtype) {
  return dtype <= DType::kUint64 || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

}  // namespace penstock
