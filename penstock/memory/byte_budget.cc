#include "penstock/memory/byte_budget.h"

#include <algorithm>
#include <vector>

namespace penstock {

// ---- with the lock -----------------------------------------------------------------------------

void ByteBudget::Holder::count() {
  const uint64_t before = counted_.load(std::memory_order_relaxed);
  const uint64_t now = std::max(bytes_ + set_aside_, minimum_);
  counted_.store(now, std::memory_order_relaxed);
  const uint64_t used = budget_.used_.load(std::memory_order_relaxed);
  budget_.used_.store(used - before + now, std::memory_order_relaxed);
}

// Whether the holder may have `more` bytes now.
bool ByteBudget::fits(const Holder& holder, uint64_t more) const {
  const uint64_t wanted = holder.bytes_ + holder.set_aside_ + more;
  if (wanted <= holder.minimum_) return true;
  const uint64_t others = used() - holder.counted_.load(std::memory_order_relaxed);
  return others <= total_ && wanted <= total_ - others;
}

// Whether it could have them if all others had only their minimum.
bool ByteBudget::possible(const Holder& holder, uint64_t more) const {
  const uint64_t wanted = holder.bytes_ + holder.set_aside_ + more;
  const uint64_t others = minimums_ - holder.minimum_;
  return others <= total_ && wanted <= total_ - others;
}

// Whether no earlier holder in the queue could be granted its request some time.
bool ByteBudget::is_next(const Holder& holder) const {
  for (const Holder* earlier : waiting_) {
    if (earlier == &holder) return true;
    if (possible(*earlier, earlier->request_)) return false;
  }
  return true;
}

void ByteBudget::leave_queue(Holder& holder) {
  if (holder.request_ == 0) return;
  holder.request_ = 0;
  std::erase(waiting_, &holder);
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
}

// Grants requests in order. The caller sees by itself what it was granted.
void ByteBudget::grant(std::unique_lock<std::mutex>& lock, const Holder* caller) {
  std::vector<Holder*> granted;
  for (size_t i = 0; i < waiting_.size();) {
    Holder& holder = *waiting_[i];
    if (!possible(holder, holder.request_)) {
      ++i;
      continue;
    }
    if (!fits(holder, holder.request_)) break;
    holder.set_aside_ += holder.request_;
    holder.count();
    leave_queue(holder);
    if (&holder != caller && holder.on_grant_) granted.push_back(&holder);
  }
  if (granted.empty()) return;
  for (Holder* holder : granted) ++holder->calls_;
  lock.unlock();
  for (Holder* holder : granted) holder->on_grant_();
  lock.lock();
  for (Holder* holder : granted) --holder->calls_;
  returned_.notify_all();
}

// ---- a holder ----------------------------------------------------------------------------------

ByteBudget::Holder::~Holder() {
  std::unique_lock lock(budget_.mutex_);
  budget_.leave_queue(*this);
  budget_.minimums_ -= minimum_;
  bytes_ = set_aside_ = minimum_ = 0;
  count();
  budget_.grant(lock, this);
  budget_.returned_.wait(lock, [this] { return calls_ == 0; });
  budget_.holders_.fetch_sub(1, std::memory_order_relaxed);
}

bool ByteBudget::Holder::take(uint64_t bytes) {
  std::lock_guard lock(budget_.mutex_);
  const uint64_t here = std::min(bytes, set_aside_), more = bytes - here;
  const bool within = bytes_ + bytes <= minimum_;
  if (more != 0 && !within && !(budget_.is_next(*this) && budget_.fits(*this, more))) {
    if (request_ == 0) {
      budget_.waiting_.push_back(this);
      budget_.waiting_count_.store(budget_.waiting_.size(), std::memory_order_relaxed);
    }
    request_ = more;
    return false;
  }
  set_aside_ -= here;
  bytes_ += bytes;
  count();
  budget_.leave_queue(*this);
  return true;
}

void ByteBudget::Holder::add(uint64_t bytes) {
  std::lock_guard lock(budget_.mutex_);
  bytes_ += bytes;
  count();
}

void ByteBudget::Holder::give_back(uint64_t bytes) {
  std::unique_lock lock(budget_.mutex_);
  bytes_ -= bytes;
  count();
  budget_.grant(lock, this);
}

void ByteBudget::Holder::withdraw() {
  std::unique_lock lock(budget_.mutex_);
  budget_.leave_queue(*this);
  set_aside_ = 0;
  count();
  budget_.grant(lock, this);
}

void ByteBudget::Holder::set_minimum(uint64_t bytes) {
  std::unique_lock lock(budget_.mutex_);
  budget_.minimums_ += bytes - minimum_;
  minimum_ = bytes;
  count();
  budget_.grant(lock, this);
}

uint64_t ByteBudget::Holder::space() const {
  const uint64_t mine = counted_.load(std::memory_order_relaxed), all = budget_.used();
  const uint64_t others = all - std::min(all, mine);
  return std::max(mine, budget_.total_ - std::min(budget_.total_, others));
}

}  // namespace penstock
