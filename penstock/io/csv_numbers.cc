#include "penstock/io/csv_numbers.h"

#include <algorithm>
#include <charconv>
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

// Of a number that its type does not hold: it is too near to 0, and not too large. That is the
// exponent of its first digit that is not 0, as it would be written with one digit in front of the
// point; neither the digits before that nor the exponent that is written tell it alone.
bool is_tiny(std::string_view text) {
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, e);
  const size_t first = digits.find_first_of("123456789");
  if (first == digits.npos) return true;
  const auto point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  const auto at = static_cast<int64_t>(first);
  const int64_t place = at < point ? point - at - 1 : point - at;
  int64_t exponent = 0;
  if (e < text.size()) {
    const char* from = text.data() + e + 1;
    if (*from == '+') ++from;
    const char* const end = text.data() + text.size();
    if (std::from_chars(from, end, exponent).ec == std::errc::result_out_of_range) {
      return *from == '-';  // no text has so many digits
    }
  }
  return exponent < -place;
}

// What is between brackets behind a nan says nothing to anybody.
bool has_payload(std::string_view text) { return text.ends_with(')'); }

template <class T>
bool floating(std::string_view text, std::byte* to) {
  T value;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && at == end && is_tiny(text)) {
    value = text[0] == '-' ? -T{0} : T{0};
  } else if (error != std::errc() || at != end || has_payload(text)) {
    return false;
  }
  std::memcpy(to, &value, sizeof(T));
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
