#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// RFC 4648, with padding: bytes in JSON.
std::string to_base64(std::span<const std::byte> bytes);
// Error kInvalidArgument: it is none.
std::vector<std::byte> from_base64(std::string_view text);

}  // namespace penstock
