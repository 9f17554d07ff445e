#pragma once

#include <string>

#include "penstock/base/error.h"

namespace penstock {

// What a state that cannot be restored is refused with.
inline Error refuse_restore(const std::string& why) {
  return {Code::kInvalidArgument, "restore", why};
}

}  // namespace penstock
