#include "penstock/train/model.h"

#include <algorithm>
#include <climits>
#include <system_error>
#include <utility>

#include "penstock/base/clock.h"

namespace penstock::train {
namespace {

constexpr const char* kWhat = "attach";

constexpr int64_t kPatienceNs = 100'000'000;   // between two calls of while_waiting
constexpr int64_t kFirstLookNs = 250'000'000;  // for a learner to answer, at the least

uint64_t end_of(uint64_t begin_ns, int64_t timeout_ns) {
  return timeout_ns < 0 ? UINT64_MAX : begin_ns + static_cast<uint64_t>(timeout_ns);
}

// < 0: for ever; 0: it is over.
int64_t left_until(uint64_t end_ns) {
  if (end_ns == UINT64_MAX) return -1;
  const uint64_t now = now_ns();
  return end_ns > now ? static_cast<int64_t>(end_ns - now) : 0;
}

}  // namespace

Model::Model(std::string name, ModelOptions options)
    : name_(std::move(name)),
      timeout_ns_(options.timeout_ns),
      while_waiting_(std::move(options.while_waiting)),
      layout_(std::move(options.like)) {
  watch_forks();
  try {
    {
      std::lock_guard lock(mutex_);
      start();
    }
    now();
  } catch (...) {
    close();
    ignore_forks();
    throw;
  }
}

Model::~Model() {
  close();
  ignore_forks();
}

void Model::start() {
  stop_ = os::event();
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error::from_errno(error.code().value(), kWhat, "cannot start a thread");
  }
}

Reading Model::read(uint64_t max_lag) {
  for (;;) {
    const Shared from = now();
    if (max_lag > 0) {
      std::lock_guard lock(mutex_);
      const auto newest = from->memory().newest();
      if (last_ && last_->from() == from && last_->version() <= newest->number &&
          newest->number - last_->version() <= max_lag) {
        return *last_;
      }
    }
    const auto held = from->memory().hold(from->row());
    if (!held) continue;
    Reading reading(from, *held);
    if (max_lag > 0) {
      std::optional<Reading> before = reading;
      std::lock_guard lock(mutex_);
      if (!closed_) last_.swap(before);
    }
    return reading;
  }
}

uint64_t Model::version() { return now()->memory().newest()->number; }

bool Model::wait(uint64_t version, int64_t timeout_ns) {
  const uint64_t end = end_of(now_ns(), timeout_ns);
  for (;;) {
    const uint32_t seen = changes_.load();
    const Shared from = now();
    if (from->memory().newest()->number >= version) return true;
    Shared with;
    {
      std::lock_guard lock(mutex_);
      with = next_ ? next_ : attached_;
    }
    if (!wait_for(with, seen, version, end)) return false;
  }
}

Model::Shared Model::now() {
  const uint64_t begin = now_ns();
  for (;;) {
    const uint32_t seen = changes_.load();
    Trash trash;
    Shared with;
    int64_t timeout_ns = timeout_ns_;
    {
      std::lock_guard lock(mutex_);
      if (inherited_) revive(trash);
      check();
      if (Shared found = newest(trash)) return found;
      with = next_;
      if (!looked_ && timeout_ns >= 0) timeout_ns = std::max(timeout_ns, kFirstLookNs);
    }
    if (!wait_for(with, seen, 0, end_of(begin, timeout_ns))) throw nobody();
  }
}

// Sleeps until the version is there, something changes after `seen`, or the time is over: then it
// is false.
bool Model::wait_for(const Shared& with, uint32_t seen, uint64_t version, uint64_t end_ns) {
  int64_t left = left_until(end_ns);
  if (left == 0) return false;
  if (while_waiting_) {
    while_waiting_();
    left = left < 0 ? kPatienceNs : std::min(left, kPatienceNs);
  }
  if (!with) {
    os::futex_wait(changes_, seen, left, false);
    return true;
  }
  const WeightsMemory& memory = with->memory();
  memory.sleep(with->row(), left, [&] {
    const auto newest = memory.newest();
    return changes_.load() != seen || (newest && newest->number >= version);
  });
  return true;
}

Error Model::nobody() {
  std::lock_guard lock(mutex_);
  std::string why = "nobody publishes '" + name_ + "' (as this user, in this network namespace)";
  if (alive_) {
    why = "who publishes '" + name_ + "' has not published a version yet";
  } else if (peer_) {
    why = "process " + std::to_string(peer_->pid) + ", which publishes '" + name_ +
          "', does not answer: is it stopped?";
  }
  return Error(Code::kTimeout, kWhat, why);
}

bool Model::would_wait() const {
  std::lock_guard lock(mutex_);
  return !closed_ && !refused_ && (inherited_ || !attached_);
}

bool Model::alive() const {
  std::lock_guard lock(mutex_);
  return alive_;
}

void Model::close() {
  Trash trash;
  std::unique_ptr<std::thread> thread;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    alive_ = false;
    notify();
    trash.attached.swap(attached_);
    trash.next.swap(next_);
    trash.last.swap(last_);
    thread = std::move(thread_);
    if (inherited_) (void)thread.release();  // there is no such thread in this process
  }
  if (!thread) return;
  os::signal_event(stop_.get());
  thread->join();
}

void Model::check() {
  if (closed_) throw Error(Code::kClosed, kWhat, "the model of '" + name_ + "' was closed");
  if (refused_) throw Error(refused_->code, kWhat, refused_->text);
}

Model::Shared Model::newest(Trash& trash) {
  if (next_ && next_->memory().newest()) {
    trash.attached = std::exchange(attached_, std::exchange(next_, nullptr));
  }
  return attached_;
}

void Model::revive(Trash& trash) {
  if (closed_) return;
  // In this order: if it cannot start, the next call tries again.
  (void)thread_.release();
  start();
  trash.attached.swap(attached_);
  trash.next.swap(next_);
  trash.last.swap(last_);
  refused_.reset();
  looked_ = false;
  inherited_ = false;
}

void Model::notify() {
  changes_.fetch_add(1);
  os::futex_wake(changes_, INT_MAX, false);
  for (const Shared& each : {attached_, next_}) {
    if (each) each->memory().wake();
  }
}

void Model::before_fork() noexcept { mutex_.lock(); }
void Model::after_fork_in_parent() noexcept { mutex_.unlock(); }

void Model::after_fork_in_child() noexcept {
  inherited_ = true;
  alive_ = false;
  stop_.reset();  // it is the parent's too
  if (peer_) peer_->fd.reset();
  mutex_.unlock();
}

}  // namespace penstock::train
