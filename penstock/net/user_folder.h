#pragma once

#include <string>

#include "penstock/base/os.h"

namespace penstock::net {

// The folder in which processes of one user find each other on this host: the sockets of names, and
// the secret of TCP connections that were given none. Other users, root excepted, can neither read
// nor write it. Threads: any.

// "penstock" in $XDG_RUNTIME_DIR, if that is a directory of this user, or else in /run/user/UID, if
// that is; otherwise /tmp/penstock-UID. Created if missing. Error kInvalidArgument: the folder is
// no directory, belongs to another user, or others have permissions on it (the text has the
// remedy). kSystem.
std::string user_folder();

// The secret of this user's processes on this host: 64 random hexadecimal digits in the folder's
// file "secret", created by the first process that needs it. Errors: those of user_folder(),
// kSystem, kTimeout.
std::string host_secret();

// Holds a folder's lock. Only processes that also use this class respect it. A child that is forked
// meanwhile does not prolong it.
class FolderLock {
 public:
  // Errors: kTimeout: others held the lock for 5 seconds; kSystem.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  os::Fd fd_;
};

}  // namespace penstock::net
