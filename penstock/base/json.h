#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The state of a stream: JSON of numbers, lists and objects.
using State = nlohmann::json;

// Bytes in JSON: RFC 4648 base64, with padding.
std::string to_base64(std::span<const std::byte> bytes);
// Error kInvalidArgument: not base64.
std::vector<std::byte> from_base64(std::string_view text);

}  // namespace penstock
