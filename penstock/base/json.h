#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/error.h"

namespace penstock {

// The state of a stream: JSON of numbers, lists and objects.
using State = nlohmann::json;

// Bytes in JSON: RFC 4648 base64, with padding.
std::string to_base64(std::span<const std::byte> bytes);
// Error kInvalidArgument: not base64.
std::vector<std::byte> from_base64(std::string_view text);

// The error of a state that cannot be restored.
inline Error refuse_restore(const std::string& why) {
  return {Code::kInvalidArgument, "restore", why};
}

}  // namespace penstock
