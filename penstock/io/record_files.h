#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/io/file_pool.h"
#include "penstock/io/record_index.h"

namespace penstock {

// The records of several files as one range: those of the first file, then of the second, and so
// on. A damaged place counts as a record. Immutable: any thread.
class RecordFiles {
 public:
  // indices[i] is the index of paths[i]; `pool` opens the files.
  // Error kInvalidArgument if their numbers differ.
  RecordFiles(std::shared_ptr<FilePool> pool, std::vector<std::string> paths,
              std::vector<RecordIndex> indices);

  uint64_t size() const { return begins_.back(); }
  size_t files() const { return paths_.size(); }
  FilePool& pool() const { return *pool_; }
  const std::shared_ptr<FilePool>& shared_pool() const { return pool_; }

  // REQUIRED: record < size().
  size_t file_of(uint64_t record) const;

  // REQUIRED: file < files().
  uint64_t begin(size_t file) const { return begins_[file]; }  // its first record's number
  uint64_t end(size_t file) const { return begins_[file + 1]; }
  const std::string& path(size_t file) const { return paths_[file]; }
  const RecordIndex& index(size_t file) const { return indices_[file]; }
  uint32_t number(size_t file) const { return numbers_[file]; }  // in the pool

 private:
  std::shared_ptr<FilePool> pool_;
  std::vector<std::string> paths_;
  std::vector<RecordIndex> indices_;
  std::vector<uint32_t> numbers_;
  std::vector<uint64_t> begins_;  // one more than files
};

// Calls work(i, file) for each file, on up to `threads` threads, the calling one included. Error as
// from `work` and FileSystem::open(), of the first file that fails.
void for_each_file(FilePool& pool, const std::vector<std::string>& paths, unsigned threads,
                   const std::function<void(size_t, const std::shared_ptr<File>&)>& work);

// Indexes the files with `index`, on up to `threads` threads like for_each_file().
std::shared_ptr<const RecordFiles> index_files(
    std::shared_ptr<FilePool> pool, std::vector<std::string> paths, unsigned threads,
    const std::function<RecordIndex(const std::shared_ptr<File>&)>& index);

}  // namespace penstock
