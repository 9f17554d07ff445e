#include "penstock/train/server/gradient_pool.h"

#include <chrono>
#include <utility>

#include "penstock/base/os.h"

namespace penstock::train {

GradientPool::Buffer::Buffer(GradientPool& pool, size_t floats)
    : pool_(pool), floats_(pool.take(floats)) {}

GradientPool::Buffer::~Buffer() { pool_.give_back(std::move(floats_)); }

std::unique_ptr<GradientPool::Floats> GradientPool::take(size_t floats) {
  std::unique_ptr<Floats> taken;
  {
    std::unique_lock lock(mutex_);
    idle_.reserve(kIdle);  // give_back() does not allocate
    if (limit_ > 0) {
      given_back_.wait_for(lock, std::chrono::duration<double>(patience_s_),
                           [&] { return in_use_ < limit_; });
    }
    if (!idle_.empty()) {
      taken = std::move(idle_.back());
      idle_.pop_back();
    }
    ++in_use_;
  }
  try {
    if (taken == nullptr) taken = std::make_unique<Floats>();
    if (taken->size() < floats) {
      taken->resize(floats);
      os::collapse_huge_pages(taken->data(), floats * sizeof(float));
    }
  } catch (...) {
    give_back(nullptr);
    throw;
  }
  return taken;
}

void GradientPool::give_back(std::unique_ptr<Floats> floats) noexcept {
  {
    std::lock_guard lock(mutex_);
    --in_use_;
    if (floats != nullptr && idle_.size() < kIdle) idle_.push_back(std::move(floats));
  }
  given_back_.notify_one();
  // A buffer that is not kept is freed here, without the lock.
}

size_t GradientPool::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

size_t GradientPool::idle_floats() const {
  std::lock_guard lock(mutex_);
  size_t floats = 0;
  for (const auto& each : idle_) floats += each->size();
  return floats;
}

}  // namespace penstock::train
