#pragma once

#include <cstddef>
#include <vector>

#include "penstock/base/os.h"

namespace penstock {

// What a stage keeps elements in, for all processes that run what was built: those of the workers
// build the same plan, and attach what the consumer's has.
class SharedStore {
 public:
  virtual ~SharedStore() = default;

  // For another process, always as many; this one keeps them. Error kOutOfMemory, kSystem.
  virtual std::vector<int> fds() = 0;
  virtual size_t fd_count() const = 0;
  // That store, by descriptors of its own. Before it is used. Error kInvalidArgument: it is another
  // plan's.
  virtual void attach(std::vector<os::Fd> fds) = 0;

  // In the consumer's process: a pass is over, so what only waits for elements that it gave is
  // done. May wait. Errors are the store's own.
  virtual void end_pass() {}
};

}  // namespace penstock
