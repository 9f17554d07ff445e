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

std::shared_ptr<File> FilePool::get(uint32_t number) {
  std::shared_ptr<File> closed;  // goes after the lock was given back
  std::unique_lock lock(mutex_);
  if (entries_[number].file == nullptr) {
    // Opening may take long (a file server), and others have theirs open.
    const std::string path = entries_[number].path;
    lock.unlock();
    std::shared_ptr<File> opened = files_->open(path);
    lock.lock();
    if (entries_[number].file == nullptr) {
      if (used_.size() >= most_) {
        closed = std::move(entries_[used_.back()].file);
        used_.pop_back();
      }
      used_.push_front(number);
      entries_[number].used = used_.begin();
      entries_[number].file = std::move(opened);
    }
  }
  Entry& entry = entries_[number];
  if (entry.used != used_.begin()) used_.splice(used_.begin(), used_, entry.used);
  return entry.file;
}

size_t FilePool::open_files() const {
  std::lock_guard lock(mutex_);
  return used_.size();
}

}  // namespace penstock
