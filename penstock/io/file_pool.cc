#include "penstock/io/file_pool.h"

#include <algorithm>
#include <utility>

namespace penstock {

FilePool::FilePool(std::shared_ptr<FileSystem> files, size_t most)
    : files_(std::move(files)), most_(std::max<size_t>(most, 1)) {}

uint32_t FilePool::add(const std::string& path) {
  std::lock_guard lock(mutex_);
  auto [found, is_new] = numbers_.try_emplace(path, static_cast<uint32_t>(entries_.size()));
  if (is_new) entries_.push_back({path, nullptr, {}});
  return found->second;
}

void FilePool::get(std::span<const uint32_t> number, std::shared_ptr<File>* out) {
  std::vector<std::shared_ptr<File>> closed;  // goes after the lock was given back
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < number.size(); ++i) {
    const uint32_t wanted = number[i];
    if (entries_[wanted].file == nullptr) {
      // Opening may take long (a file server), and others have theirs open.
      const std::string path = entries_[wanted].path;
      lock.unlock();
      std::shared_ptr<File> opened = files_->open(path);
      lock.lock();
      if (entries_[wanted].file == nullptr) {
        if (used_.size() >= most_) {
          closed.push_back(std::move(entries_[used_.back()].file));
          used_.pop_back();
        }
        used_.push_front(wanted);
        entries_[wanted].used = used_.begin();
        entries_[wanted].file = std::move(opened);
      }
    }
    Entry& entry = entries_[wanted];
    if (entry.used != used_.begin()) used_.splice(used_.begin(), used_, entry.used);
    out[i] = entry.file;
  }
}

std::shared_ptr<File> FilePool::get(uint32_t number) {
  std::shared_ptr<File> file;
  get(std::span(&number, 1), &file);
  return file;
}

size_t FilePool::open_files() const {
  std::lock_guard lock(mutex_);
  return used_.size();
}

}  // namespace penstock
