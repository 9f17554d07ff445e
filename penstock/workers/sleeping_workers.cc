#include "penstock/workers/sleeping_workers.h"

#include <algorithm>

#include "penstock/base/os.h"

namespace penstock {

namespace {
constexpr uint64_t bit_of(uint32_t worker) { return uint64_t{1} << (worker % 64); }
}  // namespace

void SleepingWorkers::announce(uint32_t worker) {
  ring_.sleeping[worker / 64].fetch_or(bit_of(worker), std::memory_order_seq_cst);
}

void SleepingWorkers::withdraw(uint32_t worker) {
  ring_.sleeping[worker / 64].fetch_and(~bit_of(worker));
}

void SleepingWorkers::sleep(uint32_t worker, uint32_t seen) {
  os::futex_wait(places_[worker].event, seen, -1, shared_);
}

bool SleepingWorkers::asleep(uint32_t worker) const {
  return (ring_.sleeping[worker / 64].load(std::memory_order_seq_cst) & bit_of(worker)) != 0;
}

bool SleepingWorkers::awake(uint32_t worker) const {
  return places_[worker].serving.load(std::memory_order_relaxed) != 0 && !asleep(worker);
}

bool SleepingWorkers::any_asleep() const {
  return std::ranges::any_of(ring_.sleeping, [](const std::atomic<uint64_t>& bits) {
    return bits.load(std::memory_order_seq_cst) != 0;
  });
}

void SleepingWorkers::rouse(uint32_t worker) {
  places_[worker].event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(places_[worker].event, 1 << 20, shared_);
}

void SleepingWorkers::rouse_all() {
  for (uint32_t w = 0; w < workers_; ++w) rouse(w);
}

bool SleepingWorkers::wake(uint32_t worker) {
  if (!asleep(worker)) return false;
  const uint64_t bit = bit_of(worker);
  if ((ring_.sleeping[worker / 64].fetch_and(~bit) & bit) == 0) return false;
  places_[worker].event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(places_[worker].event, 1, shared_);
  return true;
}

void SleepingWorkers::wake_some(uint64_t count) {
  for (uint32_t w = 0, end = active(); w < end && count > 0; ++w) {
    if (wake(w)) --count;
  }
}

void SleepingWorkers::set_active(uint32_t count) {
  count = std::clamp(count, 1u, workers_);
  // First the number, then the event: a worker that read the old number waits on the old event.
  const uint32_t before =
      std::min(ring_.active.exchange(count, std::memory_order_seq_cst), workers_);
  // Newly parked workers wake, too, so that their wait for tickets is counted up to now.
  for (uint32_t w = std::min(before, count), end = std::max(before, count); w < end; ++w) rouse(w);
}

}  // namespace penstock
