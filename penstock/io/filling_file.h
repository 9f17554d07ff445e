#pragma once

#include <sys/types.h>

#include <string>

#include "penstock/base/os.h"

namespace penstock {

// A file that several processes write to, and that appears under its name when it is whole. Until
// then it has a hidden name beside it, ".<name>.<pid>-<n>.filling", and a lock that those who
// write share; what a killed process left, unlocked, the next one that begins such a file removes.
//
// The process that made it owns it: when that destroys it, the hidden name goes. One thread, but
// for publish_file().
class FillingFile {
 public:
  // Errors kNotFound: there is no such folder; kSystem.
  explicit FillingFile(const std::string& path);
  ~FillingFile();
  FillingFile(const FillingFile&) = delete;
  FillingFile& operator=(const FillingFile&) = delete;

  bool owned() const;  // by this process, which is none that was forked
  const std::string& hidden() const { return hidden_; }
  int fd() const { return fd_.get(); }

 private:
  const pid_t owner_;
  std::string hidden_;
  os::Fd fd_;
};

// What was written to `fd`, at `hidden`, is on the disk, and then has the name `path`, if nothing
// else has it. False: something has, and the hidden file stays what it is. Any process. Error
// kSystem.
bool publish_file(int fd, const std::string& hidden, const std::string& path);

// All of these bytes, at that place of a file. Error kSystem: a full disk among them. `path`: what
// errors call it.
void write_at(int fd, uint64_t offset, const void* bytes, size_t count, const std::string& path);

}  // namespace penstock
