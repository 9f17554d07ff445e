#include "penstock/train/call_queue.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

// Longer than a caller's way back to the queue, and shorter than to sleep for the lock and be
// woken.
constexpr uint64_t kLockWaitNs = 20'000;
constexpr int64_t kCallWaitSliceNs = 100'000'000;  // between two calls of while_waiting

int64_t until(uint64_t end_ns, uint64_t now) {
  if (end_ns == UINT64_MAX) return -1;
  return end_ns <= now ? 0 : static_cast<int64_t>(end_ns - now);
}

void wake_one(std::atomic<uint32_t>& word) { os::futex_wake(word, 1, false); }

int64_t slice_of(int64_t left) {
  return left < 0 ? kCallWaitSliceNs : std::min(left, kCallWaitSliceNs);
}

}  // namespace

CallQueue::CallQueue(std::string operation, CallQueueOptions options)
    : operation_(std::move(operation)), options_(std::move(options)) {
  if (options_.max_batch == 0) {
    throw Error(Code::kInvalidArgument, operation_, "max_batch is 0; give 1 or more");
  }
  if (options_.max_queue < options_.max_batch) {
    throw Error(Code::kInvalidArgument, operation_,
                "max_queue is " + std::to_string(options_.max_queue) + ", less than max_batch, " +
                    std::to_string(options_.max_batch) + ": no batch could be full");
  }
  watch_forks();
}

CallQueue::~CallQueue() { ignore_forks(); }

// ---- callers

bool CallQueue::enter(const CallRef& call) {
  const std::lock_guard lock(mutex_);
  add(call, false);
  return call->state_.load() == Call::kLeads;
}

void CallQueue::submit(const CallRef& call) {
  const std::lock_guard lock(mutex_);
  add(call, true);
}

void CallQueue::add(const CallRef& call, bool submitted) {
  if (closed_) throw Error(Code::kClosed, operation_, "it was closed");
  check_thread();
  call->submitted_ = submitted;
  call->arrived_ns_ = now_ns();
  call->at_ = waiting_.insert(waiting_.end(), call);
  call->state_.store(Call::kWaiting);
  if (leader_ == Leader::kNone) {
    appoint();
  } else if (gathering_ && waiting_.size() >= options_.max_batch) {
    gathering_ = false;
    gathered_.fetch_add(1);
    wake_one(gathered_);
  }
}

void CallQueue::check_thread() const {
  const auto self = std::this_thread::get_id();
  if (running_ && runner_ == self) {
    throw Error(Code::kInvalidArgument, operation_,
                "the function calls its own batcher, and would wait for itself: call the function "
                "directly there");
  }
  if (std::ranges::find(attending_, self) != attending_.end()) {
    throw Error(Code::kInvalidArgument, operation_,
                "a signal handler calls the batcher that its thread waits for");
  }
}

void CallQueue::attend(Call& call) {
  const auto self = std::this_thread::get_id();
  {
    const std::lock_guard lock(mutex_);
    if (ended(call)) return;
    attending_.push_back(self);
    call.awake_ = true;
  }
  const auto leave = [&] {
    const std::lock_guard lock(mutex_);
    call.awake_ = false;
    attending_.erase(std::ranges::find(attending_, self));
  };
  try {
    options_.while_waiting();
  } catch (...) {
    leave();
    withdraw(call);
    throw;
  }
  leave();
}

void CallQueue::await_lock(const Call& call) const {
  const uint32_t seen = call.seen_waits_.load(std::memory_order_relaxed);
  const uint64_t end = now_ns() + kLockWaitNs;
  while (waits_.load(std::memory_order_relaxed) == seen && now_ns() < end) {
    std::this_thread::yield();
  }
}

bool CallQueue::wait(Call& call, uint64_t end_ns) {
  waits_.fetch_add(1, std::memory_order_relaxed);
  while (true) {
    const uint32_t state = call.state_.load();
    if (state >= Call::kDone) {
      if (options_.in_turn) await_lock(call);
      return false;
    }
    if (state == Call::kLeads) return true;
    const int64_t left = until(end_ns, now_ns());
    if (left == 0) {
      const CallCounts now = counts();
      if (!withdraw(call)) return false;
      const std::string others = std::to_string(now.queued) + " calls";
      throw Error(Code::kTimeout, operation_,
                  state == Call::kRunning ? "the function runs this call's batch for too long"
                  : now.blocked > 0       ? "the queue is full, of " + others
                                    : "the call's turn did not come; the queue has " + others);
    }
    const bool calls = options_.while_waiting != nullptr;
    os::futex_wait(call.state_, state, calls ? slice_of(left) : left, false);
    if (calls && call.state_.load() == state) attend(call);
  }
}

bool CallQueue::withdraw(Call& call) {
  CallRef kept;  // released without the lock
  const std::lock_guard lock(mutex_);
  switch (call.state_.load()) {
    case Call::kWaiting:
    case Call::kLeads: {
      const bool led = appointed(call);
      kept = *call.at_;
      waiting_.erase(call.at_);
      call.state_.store(Call::kWithdrawn);
      ++counts_.withdrawn;
      if (!led) return true;
      gathering_ = false;
      leader_ = Leader::kNone;
      appoint();
      return true;
    }
    case Call::kRunning:
      if (!std::exchange(call.abandoned, true)) ++counts_.withdrawn;
      return true;
    default:
      return false;
  }
}

// ---- leaders

void CallQueue::appoint() {
  if (waiting_.empty()) return;
  if (waiting_.front()->submitted_) {
    leader_ = Leader::kHelper;
    helper_.fetch_add(1);
    wake_one(helper_);
    return;
  }
  leader_ = Leader::kCaller;
  lead();
}

bool CallQueue::appointed(const Call& call) const {
  return leader_ == Leader::kCaller && !running_ && waiting_.front().get() == &call;
}

void CallQueue::lead() {
  if (leader_ != Leader::kCaller || running_ || returning_ > 0) return;
  Call& oldest = *waiting_.front();
  oldest.state_.store(Call::kLeads);
  wake_one(oldest.state_);
}

bool CallQueue::wait_to_lead() {
  while (true) {
    const uint32_t seen = helper_.load();
    {
      const std::lock_guard lock(mutex_);
      if (leader_ == Leader::kHelper && !running_) return true;
      if (closed_) return false;
    }
    os::futex_wait(helper_, seen, -1, false);
  }
}

void CallQueue::gather(Call* own) {
  while (true) {
    const uint32_t seen = gathered_.load();
    int64_t left = 0;
    {
      const std::lock_guard lock(mutex_);
      gathering_ = false;
      const bool leads =
          own == nullptr ? leader_ == Leader::kHelper : own->state_.load() == Call::kLeads;
      if (!leads || waiting_.empty() || waiting_.size() >= options_.max_batch) return;
      left = until(waiting_.front()->arrived_ns_ + static_cast<uint64_t>(options_.max_wait_ns),
                   now_ns());
      if (left == 0) return;
      gathering_ = true;
    }
    const bool calls = options_.while_waiting != nullptr && own != nullptr;
    os::futex_wait(gathered_, seen, calls ? slice_of(left) : left, false);
    if (calls && gathered_.load() == seen && left >= kCallWaitSliceNs) attend(*own);
  }
}

CallQueue::Batch CallQueue::take(const Call* own) {
  const std::lock_guard lock(mutex_);
  const bool leads =
      own == nullptr ? leader_ == Leader::kHelper : own->state_.load() == Call::kLeads;
  if (!leads) return {};
  gathering_ = false;
  if (waiting_.empty()) {  // all were withdrawn, or closed
    leader_ = Leader::kNone;
    return {};
  }
  Batch batch;
  batch.reserve(std::min<size_t>(waiting_.size(), options_.max_batch));
  const uint64_t now = now_ns();
  while (!waiting_.empty() && batch.size() < options_.max_batch) {
    CallRef& next = waiting_.front();
    if (!batch.empty() && !next->joins(*batch.front())) break;
    next->state_.store(Call::kRunning);
    next->taken_ns_ = now;
    batch.push_back(std::move(next));
    waiting_.pop_front();
  }
  running_ = true;
  own_ = own;
  runner_ = std::this_thread::get_id();
  return batch;
}

void CallQueue::end(Call& call, uint64_t now) {
  ++counts_.calls;
  if (call.error != nullptr || call.failed) ++counts_.failed;
  counts_.waited.add(call.taken_ns_ - call.arrived_ns_);
  counts_.total.add(now - call.arrived_ns_);
  call.state_.store(Call::kDone);
}

void CallQueue::finish(const Batch& batch) {
  Batch sleepers;  // in the order in which they go on
  {
    const std::lock_guard lock(mutex_);
    ++counts_.batches;
    for (const CallRef& call : batch) {
      const bool awake = call->submitted_ || call->abandoned || call->awake_;
      if (!awake && call.get() != own_) sleepers.push_back(call);
    }
    if (options_.in_turn) {
      for (size_t i = 0; i < sleepers.size(); ++i) {
        sleepers[i]->returning_ = true;
        if (i > 0) sleepers[i - 1]->next_ = sleepers[i];
      }
      returning_ += sleepers.size();
    }
    const uint64_t now = now_ns();
    for (const CallRef& call : batch) end(*call, now);
    running_ = false;
    leader_ = Leader::kNone;
    appoint();
  }
  if (options_.in_turn && !sleepers.empty()) {
    sleepers.resize(1);
    sleepers[0]->seen_waits_.store(waits_.load());
  }
  for (const CallRef& call : sleepers) wake_one(call->state_);
}

void CallQueue::returned(Call& call) {
  CallRef next;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(call.returning_, false)) return;
    next = std::exchange(call.next_, nullptr);
    if (next != nullptr) next->seen_waits_.store(waits_.load());
    if (--returning_ == 0) lead();
  }
  if (next != nullptr) wake_one(next->state_);
}

void CallQueue::put_back(const Batch& batch, const Call* own) {
  const std::lock_guard lock(mutex_);
  const uint64_t now = now_ns();
  ++counts_.batches;
  for (auto at = batch.rbegin(); at != batch.rend(); ++at) {
    const CallRef& call = *at;
    if (call.get() == own || call->abandoned || closed_) {
      if (call.get() != own && !call->abandoned) {
        call->error = closed_error();
      }
      end(*call, now);
      wake_one(call->state_);
      continue;
    }
    call->at_ = waiting_.insert(waiting_.begin(), call);
    call->state_.store(Call::kWaiting);
  }
  running_ = false;
  leader_ = Leader::kNone;
  appoint();
}

// ---- the whole

std::exception_ptr CallQueue::closed_error() const {
  return std::make_exception_ptr(Error(Code::kClosed, operation_, "it was closed"));
}

CallCounts CallQueue::counts() const {
  const std::lock_guard lock(mutex_);
  CallCounts counts = counts_;
  counts.queued = std::min<uint64_t>(waiting_.size(), options_.max_queue);
  counts.blocked = waiting_.size() - counts.queued;
  return counts;
}

uint64_t CallQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

bool CallQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

CallQueue::Batch CallQueue::close() {
  Batch ended;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    ended.assign(waiting_.begin(), waiting_.end());
    waiting_.clear();
    for (const CallRef& call : ended) {
      call->error = closed_error();
      call->state_.store(Call::kDone);
    }
    if (!running_) leader_ = Leader::kNone;
    gathering_ = false;
    gathered_.fetch_add(1);
    helper_.fetch_add(1);
  }
  os::futex_wake(gathered_, INT_MAX, false);
  os::futex_wake(helper_, INT_MAX, false);
  for (const CallRef& call : ended) wake_one(call->state_);
  return ended;
}

void CallQueue::after_fork_in_child() noexcept {
  for (const CallRef& call : waiting_) call->state_.store(Call::kWithdrawn);
  parents_.splice(parents_.end(), waiting_);  // released later: nothing may be freed here
  gathering_ = false;
  returning_ = 0;
  std::erase_if(attending_, [](auto id) { return id != std::this_thread::get_id(); });
  if (!running_ || runner_ != std::this_thread::get_id()) {
    running_ = false;
    leader_ = Leader::kNone;
  }
  mutex_.unlock();
}

}  // namespace penstock::train
