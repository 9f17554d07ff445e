#pragma once

#include <sys/types.h>

#include <string>

#include "penstock/base/os.h"

namespace penstock {

// A file that several processes write to, and that appears under its name once it is complete.
// Until then it has a hidden name in the same folder, ".<name>.<pid>-<n>.filling", and a lock that
// its writers share. Hidden files without a lock were left by killed processes; the next AtomicFile
// of the same name removes them.
//
// The process that created the AtomicFile owns it, and removes the hidden name when it destroys the
// object. One thread, except for publish_file().
class AtomicFile {
 public:
  // Errors kNotFound: no such folder; kSystem.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  bool owned() const;  // false in a forked child of the creator
  const std::string& hidden() const { return hidden_; }
  int fd() const { return fd_.get(); }

 private:
  const pid_t owner_;
  std::string hidden_;
  os::Fd fd_;
};

// Flushes `fd` to disk, then gives the file `hidden` the name `path`, which is on the disk, too, on
// return. False: `path` already exists; the hidden file is unchanged. Any process. Error kSystem.
bool publish_file(int fd, const std::string& hidden, const std::string& path);

// Writes all bytes at an offset of a file. Error kSystem, for example on a full disk. `path`: for
// error texts.
void write_at(int fd, uint64_t offset, const void* bytes, size_t count, const std::string& path);

}  // namespace penstock
