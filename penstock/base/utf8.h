#pragma once

#include <cstddef>
#include <span>

namespace penstock {

// Whether bytes are UTF-8 as Unicode has it (and Python's decoder): no overlong forms, no
// surrogates, nothing above U+10FFFF, nothing cut off. ASCII is gone over 16 bytes at a time.
bool is_utf8(std::span<const std::byte> text);

}  // namespace penstock
