#include "penstock/base/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

namespace {

constexpr uint64_t kBeyondAscii = 0x8080808080808080;

uint64_t eight_bytes(const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

bool continues(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The length of the character that begins with a non-ASCII byte; 0: the character is invalid. (The
// Unicode Standard, table 3-7: only the second byte's range depends on the first.)
size_t length_of_character(const unsigned char* at, size_t left) {
  const unsigned char first = at[0];
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (left < length || !continues(at[1])) return 0;
  if (length == 2) return 2;
  if (!continues(at[2]) || (length == 4 && !continues(at[3]))) return 0;
  switch (first) {
    case 0xE0:
      return at[1] >= 0xA0 ? 3 : 0;  // overlong
    case 0xED:
      return at[1] < 0xA0 ? 3 : 0;  // surrogates
    case 0xF0:
      return at[1] >= 0x90 ? 4 : 0;  // overlong
    case 0xF4:
      return at[1] < 0x90 ? 4 : 0;  // above U+10FFFF
    default:
      return length;
  }
}

bool is_utf8_plain(const unsigned char* at, const unsigned char* const end) {
  while (true) {
    while (end - at >= 8 && (eight_bytes(at) & kBeyondAscii) == 0) at += 8;
    while (at != end && *at < 0x80) ++at;
    if (at == end) return true;
    while (at != end && *at >= 0x80) {  // non-ASCII letters come in groups
      const size_t length = length_of_character(at, static_cast<size_t>(end - at));
      if (length == 0) return false;
      at += length;
    }
  }
}

#if defined(__x86_64__)

#define PENSTOCK_UTF8_AVX2 __attribute__((target("avx2")))

// Classifies each byte and the previous one by three table lookups of half a byte each; a fault
// that all three report is real. (Keiser and Lemire, "Validating UTF-8 in less than one instruction
// per byte", 2020.)
enum Wrong : uint8_t {
  kTooShort = 1,       // a character's first byte, and then another one's
  kTooLong = 2,        // ASCII, and then a byte that continues something
  kOverlong3 = 4,      // E0 80..9F
  kTooLarge = 8,       // F4 90..BF, F5..FF 90..BF
  kSurrogate = 16,     // ED A0..BF
  kOverlong2 = 32,     // C0, C1
  kTooLarge1000 = 64,  // F5..FF 80..8F
  kOverlong4 = 64,     // F0 80..8F
  kTwoContinue = 128,  // two bytes that continue: wrong unless a longer character began before
  kAnyFirst = kTooShort | kTooLong | kTwoContinue,
};
alignas(16) constexpr uint8_t kByHighHalf[16] = {
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTooLong,
    kTwoContinue,
    kTwoContinue,
    kTwoContinue,
    kTwoContinue,
    kTooShort | kOverlong2,
    kTooShort,
    kTooShort | kOverlong3 | kSurrogate,
    kTooShort | kTooLarge | kTooLarge1000 | kOverlong4};
constexpr uint8_t kLarge = kAnyFirst | kTooLarge | kTooLarge1000;
alignas(16) constexpr uint8_t kByLowHalf[16] = {kAnyFirst | kOverlong3 | kOverlong2 | kOverlong4,
                                                kAnyFirst | kOverlong2,
                                                kAnyFirst,
                                                kAnyFirst,
                                                kAnyFirst | kTooLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge,
                                                kLarge | kSurrogate,
                                                kLarge,
                                                kLarge};
constexpr uint8_t kContinuing = kTooLong | kOverlong2 | kTwoContinue;
alignas(16) constexpr uint8_t kByNextHighHalf[16] = {
    kTooShort,
    kTooShort,
    kTooShort,
    kTooShort,
    kTooShort,
    kTooShort,
    kTooShort,
    kTooShort,
    kContinuing | kOverlong3 | kTooLarge1000 | kOverlong4,
    kContinuing | kOverlong3 | kTooLarge,
    kContinuing | kSurrogate | kTooLarge,
    kContinuing | kSurrogate | kTooLarge,
    kTooShort,
    kTooShort,
    kTooShort,
    kTooShort};

PENSTOCK_UTF8_AVX2 inline __m256i looked_up(const uint8_t* table, __m256i halves) {
  const auto* row = reinterpret_cast<const __m128i*>(table);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(row)), halves);
}

PENSTOCK_UTF8_AVX2 inline __m256i high_half(__m256i bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(0x0F));
}

// Nonzero at invalid bytes; `before`: the preceding 32 bytes.
PENSTOCK_UTF8_AVX2 inline __m256i wrong_in(__m256i bytes, __m256i before) {
  const __m256i middle = _mm256_permute2x128_si256(before, bytes, 0x21);
  const __m256i one = _mm256_alignr_epi8(bytes, middle, 15);
  const __m256i two = _mm256_alignr_epi8(bytes, middle, 14);
  const __m256i three = _mm256_alignr_epi8(bytes, middle, 13);
  const __m256i low = _mm256_and_si256(one, _mm256_set1_epi8(0x0F));
  const __m256i pair = _mm256_and_si256(
      _mm256_and_si256(looked_up(kByHighHalf, high_half(one)), looked_up(kByLowHalf, low)),
      looked_up(kByNextHighHalf, high_half(bytes)));
  // If a character of three or four bytes began two or three bytes before, two bytes must continue.
  const __m256i third = _mm256_subs_epu8(two, _mm256_set1_epi8(0xE0 - 0x80));
  const __m256i fourth = _mm256_subs_epu8(three, _mm256_set1_epi8(0xF0 - 0x80));
  const __m256i must = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8(-128));
  return _mm256_xor_si256(must, pair);
}

PENSTOCK_UTF8_AVX2 inline __m256i thirty_two(const unsigned char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

PENSTOCK_UTF8_AVX2 bool is_utf8_avx2(const unsigned char* at, const unsigned char* const end) {
  __m256i wrong = _mm256_setzero_si256(), before = wrong;
  bool ascii = true;  // all bytes so far are ASCII
  auto judge = [&](__m256i bytes) PENSTOCK_UTF8_AVX2 {
    const bool plain = _mm256_movemask_epi8(bytes) == 0;
    if (!plain || !ascii) wrong = _mm256_or_si256(wrong, wrong_in(bytes, before));
    ascii = plain;
    before = bytes;
  };
  while (end - at >= 32) {
    if (ascii) {
      while (end - at >= 128) {
        const __m256i low = _mm256_or_si256(thirty_two(at), thirty_two(at + 32));
        const __m256i high = _mm256_or_si256(thirty_two(at + 64), thirty_two(at + 96));
        if (_mm256_movemask_epi8(_mm256_or_si256(low, high)) != 0) break;
        at += 128;
      }
      if (end - at < 32) break;
    }
    judge(thirty_two(at));
    at += 32;
  }
  // Append an ASCII byte: a truncated character is then too short.
  alignas(32) unsigned char rest[32] = {};
  std::memcpy(rest, at, static_cast<size_t>(end - at));
  judge(thirty_two(rest));
  return _mm256_testz_si256(wrong, wrong) != 0;
}

#endif

// Bytes of the character at the front, or 0.
size_t length_of_front(const unsigned char* at, size_t left) {
  return at[0] < 0x80 ? 1 : length_of_character(at, left);
}

}  // namespace

bool is_utf8(std::span<const std::byte> text) {
  const auto* first = reinterpret_cast<const unsigned char*>(text.data());
#if defined(__x86_64__)
  if (text.size() >= 32 && __builtin_cpu_supports("avx2")) {
    return is_utf8_avx2(first, first + text.size());
  }
#endif
  return is_utf8_plain(first, first + text.size());
}

std::string escape_invalid_utf8(std::string_view bytes) {
  if (is_utf8(std::as_bytes(std::span(bytes)))) return std::string(bytes);
  constexpr const char* kHexDigits = "0123456789abcdef";
  std::string shown;
  while (!bytes.empty()) {
    const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
    const size_t length = length_of_front(at, bytes.size());
    if (length == 0) {
      shown += {'\\', 'x', kHexDigits[at[0] >> 4], kHexDigits[at[0] & 15]};
    } else {
      shown += bytes.substr(0, length);
    }
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return shown;
}

namespace {

constexpr std::string_view kSeparator = "://";
constexpr std::string_view kLeftOut = "...";
constexpr std::string_view kSpaces = " \t\r\n";

bool of_scheme(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '-' || c == '.' || c == ':';
}

size_t end_of(std::string_view text, std::string_view ends, size_t from) {
  return std::min(text.find_first_of(ends, from), text.size());
}

// Azure's names of a container, before the '@'.
bool names_container(std::string_view scheme) {
  scheme = scheme.substr(scheme.rfind(':') + 1);  // of "simplecache::abfs"
  return scheme == "abfs" || scheme == "abfss" || scheme == "az" || scheme == "adl" ||
         scheme == "wasb" || scheme == "wasbs";
}

// What follows the URL in the text begins in `query`, which has no spaces, at the result: a quote
// like the one in front of the URL, or punctuation at the end. A query that was left out before
// stays as it is.
size_t end_of_query(std::string_view query, char before) {
  if (query.starts_with(kLeftOut)) return kLeftOut.size();
  if (before == '\'' || before == '"' || before == '`') {
    const size_t quote = query.rfind(before);
    if (quote != query.npos) return quote;
  }
  const size_t last = query.find_last_not_of(",.;:)]}>'\"`");
  return last == query.npos ? 0 : last + 1;
}

}  // namespace

std::string without_secrets(std::string_view text) {
  size_t separator = text.find(kSeparator);
  if (separator == text.npos) return std::string(text);
  std::string shown;
  size_t copied = 0;  // of the text
  while (separator != text.npos) {
    size_t scheme = separator;
    while (scheme > copied && of_scheme(text[scheme - 1])) --scheme;
    const size_t host = separator + kSeparator.size();
    const size_t end = end_of(text, "/?# \t\r\n\"'`<>", host);
    shown += text.substr(copied, host - copied);
    copied = host;
    separator = text.find(kSeparator, host);
    if (separator != text.npos && separator + 1 == end) continue;  // "zip://file::https://..."
    const size_t at = text.substr(host, end - host).rfind('@');
    if (at != text.npos && !names_container(text.substr(scheme, host - scheme - 3))) {
      copied = host + at + 1;
    }
    const size_t query = text.find('?', end);
    const size_t space = end_of(text, kSpaces, end);
    if (query < std::min(space, separator)) {
      const char before = scheme > 0 ? text[scheme - 1] : ' ';
      shown += text.substr(copied, query + 1 - copied);
      shown += kLeftOut;
      copied = query + 1 + end_of_query(text.substr(query + 1, space - query - 1), before);
      separator = text.find(kSeparator, space);
    }
  }
  return shown.append(text.substr(copied));
}

}  // namespace penstock
