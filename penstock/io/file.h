#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock {

// An open file, read by position. All members are thread-safe.
class File {
 public:
  struct Segment {
    uint64_t offset;
    std::byte* to;
    uint64_t bytes;
  };

  virtual ~File() = default;
  virtual const std::string& path() const = 0;

  // The file's current size. Error kSystem.
  virtual uint64_t size() = 0;

  // Identifies the file independently of its name; not known() for some files. Error kSystem.
  struct Identity {
    uint64_t device = 0, inode = 0;
    bool known() const { return inode != 0; }
    bool operator==(const Identity&) const = default;
  };
  virtual Identity identity() { return {}; }

  // Reads all segments. Error kDataLoss if the file is too short, kSystem. Segments with gaps of at
  // most kGap bytes between them are read together, so pass them in ascending order.
  virtual void read(std::span<const Segment> segments) = 0;
  static constexpr uint64_t kGap = 4096;

  // A hint that these bytes will be read soon. Never throws.
  virtual void will_need(uint64_t offset, uint64_t bytes) noexcept = 0;

  // A mapping of the file, valid as long as the File; empty if there is none. Only for prefetches
  // and as the source of system calls. Never load from it: if the file became shorter, a load is
  // SIGBUS. Never throws.
  struct Mapping {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  virtual Mapping mapping() noexcept { return {}; }
};

// A File with a modification time.
class TimestampedFile : public File {
 public:
  // Nanoseconds since 1970, by the clock of its file system. Error kSystem.
  virtual int64_t modified_ns() = 0;
};

// A file that is being written. One thread. Without commit(), the destructor leaves no trace of the
// new file. An existing file of the same name stays in place until commit().
class Sink {
 public:
  virtual ~Sink() = default;

  virtual void write(std::span<const std::byte> bytes) = 0;  // Error kSystem

  // Flushes everything to disk, then publishes the file under its name, replacing an existing one.
  // Error kSystem. No other member may be called afterwards.
  virtual void commit() = 0;
};

// An Error of FileSystem::open (kSystem): the process, or the machine, has no descriptor left. May
// succeed after another file was closed.
class TooManyOpenFiles : public Error {
 public:
  explicit TooManyOpenFiles(Error error) : Error(std::move(error)) {}
};

// Opens, creates and lists files. All file access of penstock goes through a FileSystem, so tests
// can substitute one that fails. Any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Error kNotFound: no such file; kInvalidArgument: not a file (a folder, a pipe);
  // TooManyOpenFiles; kSystem.
  virtual std::shared_ptr<File> open(const std::string& path) = 0;
  // The same for a file that had this identity before. By a URL this finds the version that it had.
  virtual std::shared_ptr<File> reopen(const std::string& path, const File::Identity& identity) {
    return (void)identity, open(path);
  }
  // A hint that these files will be opened and read soon. Never throws.
  virtual void will_open(const std::vector<std::string>& paths) noexcept { (void)paths; }

  // Error kNotFound: no such folder; kSystem.
  virtual std::unique_ptr<Sink> create(const std::string& path) = 0;

  enum class Kind : uint8_t { kNothing, kFile, kFolder };
  virtual Kind kind(const std::string& path) = 0;

  // The names in a folder ("": the working directory), in any order; empty if it cannot be read.
  virtual std::vector<std::string> list(const std::string& folder) = 0;

  struct Entry {
    std::string name;
    Kind kind = Kind::kNothing;  // of what a link leads to
    bool link = false;
  };
  // The URLs that a URL with a pattern matches, sorted. Error kNotFound: none does; kSystem.
  virtual std::vector<std::string> match_url(const std::string& url) {
    throw Error(Code::kNotFound, "glob", "no file matches " + url);
  }
  // As list(), with their kinds, which most file systems tell without looking at each file.
  // `folder` ends with '/', or is "": the working directory.
  virtual std::vector<Entry> entries(const std::string& folder) {
    std::vector<Entry> all;
    for (std::string& name : list(folder)) {
      const Kind its = kind(folder + name);
      all.push_back({std::move(name), its, false});
    }
    return all;
  }
  // Nanoseconds since 1970, by the clock of its file system: when a name in this folder ("": the
  // working directory) last appeared or vanished. nullopt: unknown. Never throws.
  virtual std::optional<int64_t> folder_modified_ns(const std::string& folder) {
    return (void)folder, std::nullopt;
  }
};

// The machine's own files.
std::shared_ptr<FileSystem> posix_files();

// Its parts, for callers that have a descriptor.

// A File over an open descriptor. `path`: for error texts.
std::shared_ptr<File> posix_file(std::string path, os::Fd fd);

// Writes to an unnamed file in the same folder until commit(), so a killed process leaves nothing
// behind. On file systems without unnamed files it has a hidden name until then, which no pattern
// of glob() matches, and which a killed process leaves. A symbolic link is followed and its target
// replaced. A device or pipe is written to directly. After commit() the file and its name are on
// the disk. Error kInvalidArgument: a folder, a disk or a socket.
std::unique_ptr<Sink> create_posix_sink(const std::string& path);

// The target of a chain of symbolic links, whether or not it exists. Error kSystem.
std::string resolve_links(std::string path);

// Flushes the names of a folder's files to disk, if the file system can. Error kSystem.
void sync_posix_folder(const std::string& folder, const char* operation);

std::vector<std::string> list_posix_folder(const std::string& folder);

}  // namespace penstock
