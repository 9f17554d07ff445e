#include "penstock/io/file_pool.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock {

FilePool::FilePool(std::shared_ptr<FileSystem> files, std::shared_ptr<OpenFiles> open)
    : files_(std::move(files)), open_(std::move(open)) {}

FilePool::~FilePool() {
  OpenFiles::Closed closed;  // goes after the lock was given back, here and below
  std::lock_guard lock(open_->mutex_);
  close_all(closed);
}

uint32_t FilePool::add(const std::string& path, const File::Identity& identity) {
  std::lock_guard lock(open_->mutex_);
  auto [found, is_new] = numbers_.try_emplace(path, static_cast<uint32_t>(entries_.size()));
  if (is_new) entries_.push_back({path, identity});
  return found->second;
}

File::Identity FilePool::identity(uint32_t number) const {
  std::lock_guard lock(open_->mutex_);
  return entries_[number].identity;
}

std::shared_ptr<File> FilePool::take(uint32_t number, bool beyond) {
  OpenFiles::Closed closed;
  std::unique_lock lock(open_->mutex_);
  Entry& entry = entries_[number];
  if (entry.file == nullptr) {
    if (!open_->make_room(closed) && !beyond) return nullptr;
    ++open_->opening_;
    // Opening may take long (a file server), and others have theirs open.
    lock.unlock();
    closed.clear();
    std::shared_ptr<File> opened;
    File::Identity identity;
    std::exception_ptr error;
    try {
      opened = open(entry.path);
      identity = opened->identity();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --open_->opening_;
    if (error != nullptr) std::rethrow_exception(error);
    if (!entry.identity.known()) entry.identity = identity;
    if (identity != entry.identity) {
      throw Error(Code::kDataLoss, "open",
                  entry.path +
                      ": another file has taken its place since the Dataset was built; "
                      "what is known of its records is not that file's. Build it again");
    }
    if (entry.file == nullptr) {
      open_->add(entry, std::move(opened));
    } else {
      closed.push_back(std::move(opened));  // somebody else was faster
    }
  }
  if (entry.used != open_->open_.begin()) {
    open_->open_.splice(open_->open_.begin(), open_->open_, entry.used);
  }
  std::shared_ptr<File> file = entry.file;
  // There may be more than that since a time when all of them were held.
  open_->close_what_is_too_much(closed);
  return file;
}

std::shared_ptr<File> FilePool::open(const std::string& path) {
  for (;;) {
    try {
      return files_->open(path);
    } catch (const NoDescriptorLeft&) {
      OpenFiles::Closed closed;
      std::lock_guard lock(open_->mutex_);
      if (!open_->close_oldest(closed)) throw;
    }
  }
}

void FilePool::close_all(OpenFiles::Closed& closed) {
  for (Entry& entry : entries_) open_->close(entry, closed);
}

void FilePool::close_unused() {
  OpenFiles::Closed closed;
  std::lock_guard lock(open_->mutex_);
  if (uses_ == 0) close_all(closed);
}

FilePool::Use::Use(std::shared_ptr<FilePool> pool) : pool_(std::move(pool)) {
  std::lock_guard lock(pool_->open_->mutex_);
  ++pool_->uses_;
}

FilePool::Use::~Use() {
  OpenFiles::Closed closed;
  std::lock_guard lock(pool_->open_->mutex_);
  if (--pool_->uses_ == 0) pool_->close_all(closed);
}

size_t FilePool::open_files() const {
  std::lock_guard lock(open_->mutex_);
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [](const Entry& e) { return e.file != nullptr; }));
}

}  // namespace penstock
