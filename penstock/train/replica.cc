#include "penstock/train/replica.h"

#include <utility>

#include "penstock/base/clock.h"
#include "penstock/train/relaxed.h"

namespace penstock::train {

std::vector<std::shared_ptr<Replica>> Replica::make(const Parameters& common, size_t groups,
                                                    uint64_t updates) {
  const std::shared_ptr<Common> shared(new Common{common, groups, {}});
  std::vector<std::shared_ptr<Replica>> made;
  for (size_t i = 0; i < groups; ++i) {
    made.push_back(std::shared_ptr<Replica>(new Replica(shared, updates)));
    made.back()->begin();
  }
  return made;
}

Replica::Replica(std::shared_ptr<Common> common, uint64_t updates)
    : common_(std::move(common)),
      own_(common_->parameters.layout()),
      base_(Slab::make(common_->parameters.layout())),
      updates_(updates) {}

void Replica::begin() {
  std::lock_guard lock(common_->merging);
  const float* common = common_->parameters.slab().values().data();
  relaxed::read(common, base_.values());
  own_.slab().copy_from(base_);
  merged_ = own_.version();
}

void Replica::merge() {
  std::lock_guard lock(common_->merging);
  merge_locked();
}

bool Replica::try_merge() {
  std::unique_lock lock(common_->merging, std::try_to_lock);
  if (lock) merge_locked();
  return lock.owns_lock();
}

void Replica::merge_locked() {
  const uint64_t version = own_.version();
  relaxed::merge(common_->parameters.slab().values(), own_.slab().values().data(),
                 base_.values().data(), 1 / static_cast<float>(common_->groups));
  common_->parameters.slab().version().fetch_add(version - merged_, std::memory_order_acq_rel);
  merged_ = version;
}

void MergePace::after(uint64_t n, Replica& replica) {
  constexpr uint64_t kOthers = 9;  // pause after a merge, in durations of that merge
  since_ += n;
  const uint64_t began = every_ > 0 ? 0 : now_ns();
  const bool due = every_ > 0 ? since_ >= every_ : began >= not_before_;
  if (!due || !replica.try_merge()) return;
  since_ = 0;
  if (every_ > 0) return;
  const uint64_t ended = now_ns();
  not_before_ = ended + kOthers * (ended - began);
}

}  // namespace penstock::train
