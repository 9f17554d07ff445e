#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

// True if the bytes are valid UTF-8 by the Unicode Standard (and Python's decoder): no overlong
// forms, no surrogates, nothing above U+10FFFF, no truncated character.
bool is_utf8(std::span<const std::byte> text);

// Makes bytes such as a file name printable: bytes that are not UTF-8 are escaped like "\xff".
std::string escape_invalid_utf8(std::string_view bytes);

// A text without what may be secret in its URLs. Of each URL the user and password are left out,
// and everything behind its '?' becomes "...". The account of abfs://container@account, which is
// no secret, stays. Any other text is returned as it is.
std::string without_secrets(std::string_view text);

}  // namespace penstock
