#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

// The open files of a process, at most `most` of them: the one unused longest is closed, and opened
// again when it is asked for. Whoever holds a file that was closed here can go on reading it, so
// hold one no longer than for a chunk. Any thread.
class FilePool {
 public:
  explicit FilePool(std::shared_ptr<FileSystem> files, size_t most = 256);

  // A number for this path; the same one for the same path. Opens nothing.
  uint32_t add(const std::string& path);

  // Error as FileSystem::open's. REQUIRED: a number that add() gave.
  std::shared_ptr<File> get(uint32_t number);

  size_t open_files() const;

 private:
  struct Entry {
    std::string path;
    std::shared_ptr<File> file;          // nullptr: closed
    std::list<uint32_t>::iterator used;  // in used_, if open
  };

  const std::shared_ptr<FileSystem> files_;
  const size_t most_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::list<uint32_t> used_;  // open files, the last used first
};

}  // namespace penstock
