#pragma once

#include <sys/types.h>

#include <string>

#include "penstock/base/os.h"
#include "penstock/net/socket.h"

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

// Removes the sockets of killed processes from user_folder(). Errors: those of user_folder(),
// kTimeout (see FolderLock), kSystem.
void remove_dead_sockets();

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

// A listening Unix socket and its file, which only this user can connect to and which ends with
// this object. The file of a process that was killed is replaced by the next one that listens at
// the address; files of that kind with other names in user_folder() are removed on that occasion.
//
// Threads: one at a time. In a forked child the object holds nothing after abandon().
class SocketFile {
 public:
  // Errors: kInvalidArgument: a process listens there (the text has its pid), or the file is no
  // socket; kTimeout (see FolderLock); kSystem.
  explicit SocketFile(const SocketAddress& address);
  SocketFile() = default;
  SocketFile(SocketFile&& other) noexcept;
  SocketFile& operator=(SocketFile&& other) noexcept;
  ~SocketFile() { close(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

  // Removes the file: no process connects any more. The socket stays.
  void remove_file() noexcept;
  // Closes the socket, and removes the file. Does nothing the second time.
  void close() noexcept;
  // For forked children: closes this process's descriptor, and the parent goes on listening.
  void abandon() noexcept;

 private:
  os::Fd fd_;
  std::string path_;  // empty: removed, or another process's
  dev_t device_ = 0;  // of the file
  ino_t inode_ = 0;
};

}  // namespace penstock::net
