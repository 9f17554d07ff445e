#pragma once

#include <sys/types.h>

#include <string>

#include "penstock/base/os.h"
#include "penstock/net/socket.h"

namespace penstock::net {

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
