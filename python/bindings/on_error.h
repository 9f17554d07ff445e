#pragma once

#include <string_view>

#include "penstock/pipeline/api/loader.h"

namespace penstock::python {

// REQUIRED: "raise", "skip" or "replace"; the Python code checks this.
inline OnError on_error_of(std::string_view policy) {
  if (policy == "skip") return OnError::kSkip;
  return policy == "replace" ? OnError::kReplace : OnError::kRaise;
}

}  // namespace penstock::python
