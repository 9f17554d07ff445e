#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

// Whether bytes are UTF-8 as Unicode has it (and Python's decoder): no overlong forms, no
// surrogates, nothing above U+10FFFF, nothing cut off. ASCII is gone over 16 bytes at a time.
bool is_utf8(std::span<const std::byte> text);

// Bytes that are to be shown, such as the name of a file: what of them is no UTF-8 becomes "\xff".
std::string shown_as_utf8(std::string_view bytes);

}  // namespace penstock
