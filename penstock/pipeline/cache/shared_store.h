#pragma once

#include <cstddef>
#include <vector>

#include "penstock/base/os.h"

namespace penstock {

// The store of a stage's cached elements, shared by all processes that run a plan. Worker processes
// build the same plan and attach the consumer's stores.
class SharedStore {
 public:
  virtual ~SharedStore() = default;

  // Descriptors of the store to pass to another process; always fd_count() many. This process keeps
  // them open. Error kOutOfMemory, kSystem.
  virtual std::vector<int> fds() = 0;
  virtual size_t fd_count() const = 0;
  // Makes this the store that `fds` are of. Call it before any use. Error kInvalidArgument: the
  // store of another plan.
  virtual void attach(std::vector<os::Fd> fds) = 0;

  // Called in the consumer's process after a pass. Completes work that was only waiting for
  // elements of this pass. May block. Throws the errors of the store's own methods.
  virtual void end_pass() {}
};

}  // namespace penstock
