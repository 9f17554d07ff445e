#include "penstock/train/model.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <system_error>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {
namespace {

constexpr const char* kAttach = "attach";

constexpr int64_t kWaitSliceNs = 100'000'000;    // between two calls of while_waiting
constexpr int64_t kFirstAnswerNs = 250'000'000;  // least time to answer that a learner gets

uint64_t end_of(uint64_t begin_ns, int64_t timeout_ns) {
  return timeout_ns < 0 ? UINT64_MAX : begin_ns + static_cast<uint64_t>(timeout_ns);
}

// < 0: no end; 0: the time is over.
int64_t left_until(uint64_t end_ns) {
  if (end_ns == UINT64_MAX) return -1;
  const uint64_t now = now_ns();
  return end_ns > now ? static_cast<int64_t>(end_ns - now) : 0;
}

constexpr int kRetryMs = 50;

}  // namespace

Attachment::Attachment(std::shared_ptr<const WeightsMemory> memory, uint32_t row)
    : memory_(std::move(memory)), row_(row) {
  watch_forks();
}

Attachment::~Attachment() { ignore_forks(); }

void Attachment::release(uint32_t slot) const {
  if (!inherited_.load(std::memory_order_relaxed)) memory_->release(row_, slot);
}

// Otherwise the child would keep the row after its parent has ended.
void Attachment::after_fork_in_child() noexcept {
  inherited_.store(true, std::memory_order_relaxed);
  connection_.reset();
}

Reading::Reading(std::shared_ptr<const Attachment> from, WeightsMemory::Version version) {
  try {
    hold_ = std::make_shared<Hold>(from, version);
  } catch (...) {
    from->release(version.slot);
    throw;
  }
}

Tensor Reading::at(std::string_view name) const {
  const Block& block = layout().at(name);
  float* data = hold_->from->memory().values(hold_->version.slot).data() + block.offset;
  return Tensor::view(DType::kFloat32, block.shape, data, hold_, {}, true);
}

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
    attachment();
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
    throw Error::from_errno(error.code().value(), kAttach, "cannot start a thread");
  }
}

Reading Model::read(uint64_t max_lag) {
  for (;;) {
    const AttachmentRef from = attachment();
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

uint64_t Model::version() { return attachment()->memory().newest()->number; }

bool Model::wait(uint64_t version, int64_t timeout_ns) {
  const uint64_t end = end_of(now_ns(), timeout_ns);
  for (;;) {
    const uint32_t seen = changes_.load();
    const AttachmentRef from = attachment();
    if (from->memory().newest()->number >= version) return true;
    AttachmentRef with;
    {
      std::lock_guard lock(mutex_);
      with = next_ ? next_ : attached_;
    }
    if (!wait_for(with, seen, version, end)) return false;
  }
}

Model::AttachmentRef Model::attachment() {
  const uint64_t begin = now_ns();
  for (;;) {
    const uint32_t seen = changes_.load();
    Retired retired;
    AttachmentRef with;
    int64_t timeout_ns = timeout_ns_;
    {
      std::lock_guard lock(mutex_);
      if (inherited_) reattach(retired);
      check();
      if (AttachmentRef found = newest(retired)) return found;
      with = next_;
      if (!searched_ && timeout_ns >= 0) timeout_ns = std::max(timeout_ns, kFirstAnswerNs);
    }
    if (!wait_for(with, seen, 0, end_of(begin, timeout_ns))) throw timeout_error();
  }
}

// Sleeps until the version is reached or something changes after `seen`. False: the time is over.
bool Model::wait_for(const AttachmentRef& with, uint32_t seen, uint64_t version, uint64_t end_ns) {
  int64_t left = left_until(end_ns);
  if (left == 0) return false;
  if (while_waiting_) {
    while_waiting_();
    left = left < 0 ? kWaitSliceNs : std::min(left, kWaitSliceNs);
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

Error Model::timeout_error() {
  std::lock_guard lock(mutex_);
  std::string why =
      "no process publishes '" + name_ + "' (as this user, in this network namespace)";
  if (alive_) {
    why = "the learner of '" + name_ + "' has not published a version yet";
  } else if (peer_) {
    why = "process " + std::to_string(peer_->pid) + ", which publishes '" + name_ +
          "', does not answer: is it stopped?";
  }
  return Error(Code::kTimeout, kAttach, why);
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
  Retired retired;
  std::unique_ptr<std::thread> thread;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    alive_ = false;
    notify();
    retired.attached.swap(attached_);
    retired.next.swap(next_);
    retired.last.swap(last_);
    thread = std::move(thread_);
    if (inherited_) (void)thread.release();  // this process has no such thread
  }
  if (!thread) return;
  os::signal_event(stop_.get());
  thread->join();
}

void Model::check() {
  if (closed_) throw Error(Code::kClosed, kAttach, "the model of '" + name_ + "' was closed");
  if (refused_) throw Error(refused_->code, kAttach, refused_->text);
}

Model::AttachmentRef Model::newest(Retired& retired) {
  if (next_ && next_->memory().newest()) {
    retired.attached = std::exchange(attached_, std::exchange(next_, nullptr));
  }
  return attached_;
}

void Model::reattach(Retired& retired) {
  if (closed_) return;
  // In this order: if the thread cannot start, the next call tries again.
  (void)thread_.release();
  start();
  retired.attached.swap(attached_);
  retired.next.swap(next_);
  retired.last.swap(last_);
  refused_.reset();
  searched_ = false;
  inherited_ = false;
}

void Model::notify() {
  changes_.fetch_add(1);
  os::futex_wake(changes_, INT_MAX, false);
  for (const AttachmentRef& each : {attached_, next_}) {
    if (each) each->memory().wake();
  }
}

void Model::before_fork() noexcept { mutex_.lock(); }
void Model::after_fork_in_parent() noexcept { mutex_.unlock(); }

void Model::after_fork_in_child() noexcept {
  inherited_ = true;
  alive_ = false;
  stop_.reset();  // shared with the parent
  if (peer_) peer_->fd.reset();
  mutex_.unlock();
}

void Model::run() noexcept {
  os::block_all_signals();
  for (;;) {
    try {
      follow_learner();
    } catch (const Error& error) {
      std::lock_guard lock(mutex_);
      refuse(error);
    } catch (const std::exception& error) {
      std::lock_guard lock(mutex_);
      refuse(Error(Code::kOutOfMemory, kAttach, error.what()));
    }
    pollfd stop{stop_.get(), POLLIN, 0};
    if (poll(&stop, 1, kRetryMs) > 0) return;
  }
}

// Follows one learner from its greeting to its end.
void Model::follow_learner() {
  int fd;
  {
    std::lock_guard lock(mutex_);  // so that a fork does not duplicate the connection
    peer_ = connect_to_name("weights", name_);
    if (!peer_) {
      const bool known = std::exchange(searched_, true);
      if (std::exchange(refused_, std::nullopt) || !known) notify();
      return;
    }
    fd = peer_->fd.get();
  }
  GreetingReader reader;
  if (!read_greeting(fd, reader)) {
    std::lock_guard lock(mutex_);
    peer_.reset();
    searched_ = true;
    notify();
    return;
  }
  auto mine = std::make_shared<Attachment>(WeightsMemory::open(reader.take_descriptor()),
                                           reader.greeting().row);
  Retired retired;
  {
    std::lock_guard lock(mutex_);
    mine->keep(std::move(peer_->fd));
    peer_.reset();
    searched_ = true;
    try {
      check_layout(mine->memory().layout());
      refused_.reset();
      alive_ = !closed_;
      if (!closed_) next_ = mine;
    } catch (const Error& error) {
      refuse(error);  // until that learner has ended
    }
    notify();
  }
  std::array<char, 256> ignored;
  while (readable(fd)) {
    const ssize_t got = recv(fd, ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
  }
  std::lock_guard lock(mutex_);
  alive_ = false;
  newest(retired);
  if (next_ == mine) retired.next.swap(next_);
  retired.mine = std::move(mine);
  refused_.reset();
  notify();
}

// False: the connection ended before the greeting was complete, or this thread must end.
bool Model::read_greeting(int fd, GreetingReader& reader) {
  auto garbage = [&] {
    std::lock_guard lock(mutex_);
    return Error(Code::kInvalidArgument, kAttach,
                 "process " + std::to_string(peer_->pid) + ", which has the name '" + name_ +
                     "', is no learner, or has another version of penstock");
  };
  for (;;) {
    if (!readable(fd)) return false;
    switch (reader.read(fd)) {
      case GreetingReader::State::kMore:
        continue;
      case GreetingReader::State::kEnded:
        return false;
      case GreetingReader::State::kGarbage:
        throw garbage();
      case GreetingReader::State::kComplete:
        break;
    }
    if (reader.greeting().answer == Greeting::Answer::kFull) {
      throw Error(
          Code::kOutOfMemory, kAttach,
          "'" + name_ + "' has " + std::to_string(kReaders) + " readers, the maximum: close some");
    }
    if (reader.greeting().row >= kReaders) throw garbage();
    return true;
  }
}

// REQUIRED: mutex_ is held.
void Model::check_layout(const Layout& layout) {
  if (layout_) {
    layout_->require_equal(layout, kAttach, "the published version");
  } else {
    layout_ = layout;
  }
}

// False: this thread must end.
bool Model::readable(int fd) const {
  pollfd both[2] = {{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    const int ready = poll(both, 2, -1);
    if (ready > 0) return both[1].revents == 0;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void Model::refuse(const Error& error) {
  peer_.reset();
  refused_ = {error.code(), std::string(error.what()).substr(error.operation().size() + 2)};
  notify();
}

}  // namespace penstock::train
