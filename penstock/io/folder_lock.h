#pragma once

#include <string>

#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"

namespace penstock {

// Reserves a folder for one object, by a lock on the file "lock" in it, which holds the owner's
// process id. The lock ends with the object or the process, however that ends; the file stays. A
// forked child has no share in it. Another process shares it by a duplicate of fd(). One thread.
class FolderLock final : private ForkAware {
 public:
  // `operation` and `remedy` are for error texts. Errors kInvalidArgument: the folder is locked, by
  // the process that the text names; kNotFound: no such folder; kSystem.
  FolderLock(const std::string& folder, const char* operation, const std::string& remedy);
  // A share in the lock of another process.
  explicit FolderLock(os::Fd shared);
  ~FolderLock();

  int fd() const { return fd_.get(); }

 private:
  void after_fork_in_child() noexcept override { fd_.reset(); }

  os::Fd fd_;
};

}  // namespace penstock
