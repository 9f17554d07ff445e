#include "penstock/io/file_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

namespace {

size_t process_limit() {
  constexpr rlim_t kMaxPerProcess = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return kMaxPerProcess;
  return static_cast<size_t>(std::min(kMaxPerProcess, limit.rlim_cur / 4));
}

}  // namespace

OpenFiles::OpenFiles(size_t max_open) : max_open_(std::max<size_t>(max_open, 1)) { watch_forks(); }

const std::shared_ptr<OpenFiles>& OpenFiles::of_process() {
  static const auto files = std::make_shared<OpenFiles>(process_limit());
  return files;
}

size_t OpenFiles::count() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

bool OpenFiles::close_oldest(Closed& closed) {
  for (auto entry = open_.rbegin(); entry != open_.rend(); ++entry) {
    // Readers hold a reference. New references come from the pool only, under the lock.
    if ((*entry)->file.use_count() > 1) continue;
    close(**entry, closed);
    return true;
  }
  return false;
}

void OpenFiles::close_unused(const std::string& path) {
  Closed closed;  // destroyed after unlocking
  std::lock_guard lock(mutex_);
  for (auto entry = open_.begin(); entry != open_.end();) {
    Entry& each = **entry++;
    if (each.path == path && each.file.use_count() == 1) close(each, closed);
  }
}

bool OpenFiles::close_for_one_more(Closed& closed) {
  while (open_.size() + opening_ >= max_open_) {
    if (!close_oldest(closed)) return false;
  }
  return true;
}

void OpenFiles::enforce_limit(Closed& closed) {
  while (open_.size() > max_open_ && close_oldest(closed)) {
  }
}

void OpenFiles::add(Entry& entry, std::shared_ptr<File> file) {
  open_.push_front(&entry);
  entry.used = open_.begin();
  entry.file = std::move(file);
}

void OpenFiles::close(Entry& entry, Closed& closed) {
  if (entry.file == nullptr) return;
  closed.push_back(entry.file);
  open_.erase(entry.used);
  entry.file = nullptr;
}

FilePool::FilePool(std::shared_ptr<FileSystem> files, std::shared_ptr<OpenFiles> open)
    : files_(std::move(files)), open_(std::move(open)) {}

FilePool::~FilePool() {
  OpenFiles::Closed closed;  // destroyed after unlocking, here and below
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
    if (!open_->close_for_one_more(closed) && !beyond) return nullptr;
    ++open_->opening_;
    const std::string path = entry.path;
    const File::Identity expected = entry.identity;
    // Unlock: opening may take long (a file server), and must not block other files.
    lock.unlock();
    closed.clear();
    std::shared_ptr<File> opened;
    File::Identity identity;
    std::exception_ptr error;
    try {
      opened = open(path, expected);
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
                      "the index of its records is not that file's. Build the dataset again");
    }
    if (entry.file == nullptr) {
      open_->add(entry, std::move(opened));
    } else {
      closed.push_back(std::move(opened));  // another thread opened it first
    }
  }
  if (entry.used != open_->open_.begin()) {
    open_->open_.splice(open_->open_.begin(), open_->open_, entry.used);
  }
  std::shared_ptr<File> file = entry.file;
  // The limit may be exceeded since callers held all open files.
  open_->enforce_limit(closed);
  return file;
}

std::shared_ptr<File> FilePool::open(const std::string& path, const File::Identity& identity) {
  for (;;) {
    try {
      return identity.known() ? files_->reopen(path, identity) : files_->open(path);
    } catch (const TooManyOpenFiles&) {
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
