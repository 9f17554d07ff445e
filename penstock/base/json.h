#pragma once

#include <nlohmann/json_fwd.hpp>

namespace penstock {

// Where a stream stands: numbers, lists and objects by names.
using State = nlohmann::json;

}  // namespace penstock
