#include "penstock/workers/worker_arenas.h"

#include <chrono>
#include <utility>

namespace penstock {

namespace {
constexpr std::chrono::milliseconds kLookForClosing{50};  // another thread may close the ring
constexpr int kLooks = 1200;                              // a minute: then the number is no arena's
}  // namespace

void WorkerArenas::add(uint32_t worker, uint32_t number, std::shared_ptr<Region> region) {
  std::lock_guard lock(mutex_);
  arenas_[number] = {std::move(region), worker};
  announced_.notify_all();
}

void WorkerArenas::orphan(uint32_t worker) {
  std::lock_guard lock(mutex_);
  for (auto& [number, arena] : arenas_) {
    if (arena.worker != worker || arena.orphan) continue;
    arena.orphan = any_orphans_ = true;
    for (uint32_t l = 0; l < ring_.lanes(); ++l) arena.until[l] = ring_.lane(l).posted();
  }
}

bool WorkerArenas::knows(uint32_t number) {
  std::lock_guard lock(mutex_);
  return arenas_.contains(number);
}

std::shared_ptr<Region> WorkerArenas::region(uint32_t number) {
  std::unique_lock lock(mutex_);
  drop_orphans_locked();
  auto decided = [&] { return arenas_.contains(number) || closed_ || ring_.closed(); };
  for (int look = 0; look < kLooks && !announced_.wait_for(lock, kLookForClosing, decided);
       ++look) {
  }
  auto found = arenas_.find(number);
  return found == arenas_.end() ? nullptr : found->second.region;
}

void WorkerArenas::drop_orphans() {
  std::lock_guard lock(mutex_);
  drop_orphans_locked();
}

void WorkerArenas::drop_orphans_locked() {
  if (!std::exchange(any_orphans_, false)) return;
  for (auto& [number, arena] : arenas_) {
    if (!arena.orphan || arena.region == nullptr) continue;
    bool taken = true;
    for (uint32_t l = 0; l < ring_.lanes(); ++l) {
      taken = taken && ring_.lane(l).head() >= arena.until[l];
    }
    if (taken) {
      arena.region.reset();
    } else {
      any_orphans_ = true;
    }
  }
}

void WorkerArenas::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  announced_.notify_all();
}

void WorkerArenas::forget() {
  std::lock_guard lock(mutex_);
  arenas_.clear();
}

}  // namespace penstock
