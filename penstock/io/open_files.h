#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/io/file.h"

namespace penstock {

// How many files several pools may have open at the same time, and which of them goes first: the
// one unused longest that nobody is reading. Any thread. A fork inherits what is open, and counts
// it as its own.
class OpenFiles final : private ForkAware {
 public:
  explicit OpenFiles(size_t most);
  ~OpenFiles() { ignore_forks(); }

  // What all plans of this process share: a quarter of the descriptors that it may have, which
  // leaves the others to the rest of the program, and 256 at most.
  static const std::shared_ptr<OpenFiles>& of_process();

  size_t most() const { return most_; }
  size_t count() const;

 private:
  friend class FilePool;

  struct Entry {
    std::string path;
    File::Identity identity = {};           // of the file that it was when it was first opened
    std::shared_ptr<File> file = nullptr;   // nullptr: closed
    std::list<Entry*>::iterator used = {};  // in open_, if open
  };
  // Destroyed without the lock: closing may take long.
  using Closed = std::vector<std::shared_ptr<File>>;

  // All with the lock. False: nothing can be closed.
  bool close_oldest(Closed& closed);
  bool make_room(Closed& closed);
  void close_what_is_too_much(Closed& closed);
  void add(Entry& entry, std::shared_ptr<File> file);
  void close(Entry& entry, Closed& closed);

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override {
    opening_ = 0;  // by threads that are not here
    mutex_.unlock();
  }

  const size_t most_;
  mutable std::mutex mutex_;
  std::list<Entry*> open_;  // of all pools, the last used first
  size_t opening_ = 0;      // there is room for these
};

}  // namespace penstock
