#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"

namespace penstock {

// An open file that is read by position. Any thread may call anything, several at once.
class File {
 public:
  struct Segment {
    uint64_t offset;
    std::byte* to;
    uint64_t bytes;
  };

  virtual ~File() = default;
  virtual const std::string& path() const = 0;

  // Bytes that the file has now. Error kSystem.
  virtual uint64_t size() = 0;

  // Which file it is, whatever its name; nothing where that is not known. Error kSystem.
  struct Identity {
    uint64_t device = 0, inode = 0;
    bool known() const { return inode != 0; }
    bool operator==(const Identity&) const = default;
  };
  virtual Identity identity() { return {}; }

  // Reads all of them, or throws Error: kDataLoss if the file ends before, else kSystem. Segments
  // that follow one another in the file with gaps of at most kGap bytes are read together; so give
  // them in ascending order.
  virtual void read(std::span<const Segment> segments) = 0;
  static constexpr uint64_t kGap = 4096;

  // These bytes will be read soon. Never throws.
  virtual void expect(uint64_t offset, uint64_t bytes) noexcept = 0;

  // Where the file lies in this process's memory, as long as it is held; nothing where that cannot
  // be had. For the processor to fetch ahead and for system calls to copy from, and never to be
  // looked at: a load from a file that became shorter is SIGBUS. Never throws.
  struct Mapping {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  virtual Mapping mapping() noexcept { return {}; }
};

// A file that is being written. One thread. What was not committed leaves nothing behind when it
// is destroyed; whoever had a file of that name before keeps it until then.
class Sink {
 public:
  virtual ~Sink() = default;

  virtual void write(std::span<const std::byte> bytes) = 0;  // Error kSystem

  // All that was written is on the disk, and then the file appears under its name, in place of one
  // that was there. Error kSystem. Nothing may be called afterwards.
  virtual void commit() = 0;
};

// An Error of FileSystem::open (kSystem): the process, or the machine, has no descriptor left. It
// goes once another file is closed.
class NoDescriptorLeft : public Error {
 public:
  explicit NoDescriptorLeft(Error error) : Error(std::move(error)) {}
};

// Where files are. What penstock reads and writes goes through one of these, so that tests can put
// a world under it that fails. Any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Error kNotFound if there is no such file, kInvalidArgument if it is none (a folder, a pipe),
  // NoDescriptorLeft, kSystem.
  virtual std::shared_ptr<File> open(const std::string& path) = 0;

  // Error kSystem, or kNotFound if there is no such folder.
  virtual std::unique_ptr<Sink> create(const std::string& path) = 0;

  enum class Kind : uint8_t { kNothing, kFile, kFolder };
  virtual Kind kind(const std::string& path) = 0;

  // The names in a folder ("": the working directory), in any order; none if it cannot be read.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
};

// The machine's own files.
std::shared_ptr<FileSystem> posix_files();

}  // namespace penstock
