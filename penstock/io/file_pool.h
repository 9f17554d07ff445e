#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/io/file.h"

namespace penstock {

// The limit of open files that several pools share. Beyond it, the least recently used file that is
// not being read is closed. Any thread. A forked child inherits the open files and counts them as
// its own.
class OpenFiles final : private ForkAware {
 public:
  explicit OpenFiles(size_t max_open);
  ~OpenFiles() { ignore_forks(); }

  // The instance that all plans of this process share. Its limit is a quarter of the process's
  // descriptor limit, at most 256, to leave the others to the rest of the program.
  static const std::shared_ptr<OpenFiles>& of_process();

  size_t max_open() const { return max_open_; }
  size_t count() const;

  // Closes the files of this path that no caller holds.
  void close_unused(const std::string& path);

 private:
  friend class FilePool;

  struct Entry {
    std::string path;
    File::Identity identity = {};           // of the file when it was first opened
    std::shared_ptr<File> file = nullptr;   // nullptr: closed
    std::list<Entry*>::iterator used = {};  // in open_, if open
  };
  // Files to destroy after unlocking: closing may take long.
  using Closed = std::vector<std::shared_ptr<File>>;

  // These require the lock. False: no file can be closed.
  bool close_oldest(Closed& closed);
  bool close_for_one_more(Closed& closed);
  void enforce_limit(Closed& closed);
  void add(Entry& entry, std::shared_ptr<File> file);
  void close(Entry& entry, Closed& closed);

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override {
    opening_ = 0;  // the opening threads do not exist in the child
    mutex_.unlock();
  }

  const size_t max_open_;
  mutable std::mutex mutex_;
  std::list<Entry*> open_;  // of all pools, most recently used first
  size_t opening_ = 0;      // files being opened, which count towards the limit
};

// The files of a plan, by number, opened on demand. All pools that share an OpenFiles (by default
// the process's) have no more files open than it allows: the least recently used one is closed, and
// reopened when needed. A file that a caller holds is not closed, so when reading by position, hold
// it for one chunk only. Two pools open the same path separately, since the path may name another
// file by then. Any thread.
class FilePool {
 public:
  explicit FilePool(std::shared_ptr<FileSystem> files,
                    std::shared_ptr<OpenFiles> open = OpenFiles::of_process());
  ~FilePool();
  FilePool(const FilePool&) = delete;
  FilePool& operator=(const FilePool&) = delete;

  // The number of a path; equal paths have equal numbers. Does not open the file. `identity`: of
  // the file that another pool found at this path.
  uint32_t add(const std::string& path, const File::Identity& identity = {});
  // The identity of the file when it was first opened; empty before that.
  File::Identity identity(uint32_t number) const;

  // Opens the file if necessary. If callers hold as many files as the limit allows, opens one more.
  // If the process or the machine has no descriptor left, closes files that no caller holds. Error
  // as FileSystem::open(); kDataLoss: the path now names another file than at first. REQUIRED:
  // add() returned the number.
  std::shared_ptr<File> get(uint32_t number) { return take(number, true); }
  // For callers that hold many files and can do with fewer: nullptr instead of exceeding the limit.
  std::shared_ptr<File> try_get(uint32_t number) { return take(number, false); }

  // A hint that these files will be read soon. Never throws.
  void will_open(const std::vector<std::string>& paths) noexcept { files_->will_open(paths); }

  // A reader of these files keeps a Use. All files are closed when the last Use is destroyed.
  class Use {
   public:
    explicit Use(std::shared_ptr<FilePool> pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const std::shared_ptr<FilePool> pool_;
  };
  // Closes all files, unless there is a Use.
  void close_unused();

  size_t open_files() const;

 private:
  using Entry = OpenFiles::Entry;

  std::shared_ptr<File> take(uint32_t number, bool beyond);
  std::shared_ptr<File> open(const std::string& path, const File::Identity& identity);
  void close_all(OpenFiles::Closed& closed);

  const std::shared_ptr<FileSystem> files_;
  const std::shared_ptr<OpenFiles> open_;
  // With open_'s lock:
  std::deque<Entry> entries_;
  std::unordered_map<std::string, uint32_t> numbers_;
  size_t uses_ = 0;
};

}  // namespace penstock
