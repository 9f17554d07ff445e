#include "penstock/io/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

size_t most_of_process() {
  constexpr rlim_t kMost = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMost;
  return static_cast<size_t>(std::min(kMost, limit.rlim_cur / 4));
}

}  // namespace

OpenFiles::OpenFiles(size_t most) : most_(std::max<size_t>(most, 1)) { watch_forks(); }

const std::shared_ptr<OpenFiles>& OpenFiles::of_process() {
  static const auto files = std::make_shared<OpenFiles>(most_of_process());
  return files;
}

size_t OpenFiles::count() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

bool OpenFiles::close_oldest(Closed& closed) {
  for (auto entry = open_.rbegin(); entry != open_.rend(); ++entry) {
    // Whoever reads a file holds it. Others get it from its pool only, with the lock.
    if ((*entry)->file.use_count() > 1) continue;
    close(**entry, closed);
    return true;
  }
  return false;
}

bool OpenFiles::make_room(Closed& closed) {
  while (open_.size() + opening_ >= most_) {
    if (!close_oldest(closed)) return false;
  }
  return true;
}

void OpenFiles::close_what_is_too_much(Closed& closed) {
  while (open_.size() > most_ && close_oldest(closed)) {
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

}  // namespace penstock
