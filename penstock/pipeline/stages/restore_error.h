#pragma once

#include <string>

#include "penstock/base/error.h"

namespace penstock {

// The error of a state that cannot be restored.
inline Error refuse_restore(const std::string& why) {
  return {Code::kInvalidArgument, "restore", why};
}

}  // namespace penstock
