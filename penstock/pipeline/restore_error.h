#ifndef PENSTOCK_PIPELINE_RESTORE_ERROR_H_
#define PENSTOCK_PIPELINE_RESTORE_ERROR_H_

#include <string>

#include "penstock/base/error.h"

namespace penstock {

// What a state that cannot be restored is refused with.
inline Error refuse_restore(const std::string& why) {
  return {Code::kInvalidArgument, "restore", why};
}

}  // namespace penstock

#endif  // PENSTOCK_PIPELINE_RESTORE_ERROR_H_
