#include "penstock/online/push_source.h"

#include <algorithm>
#include <chrono>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::online {

// The sink during a call. stop() waits for its end, so that the sink outlives it.
class PushSource::Use {
 public:
  explicit Use(PushSource& source) : source_(source) {
    std::lock_guard lock(source_.mutex_);
    sink_ = source_.sink_;
    ++source_.uses_;
  }
  ~Use() {
    std::lock_guard lock(source_.mutex_);
    if (--source_.uses_ == 0) source_.changed_.notify_all();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  MessageSink* sink() const { return sink_; }  // null: not started, or stopped

  void wait_for_space(const Deadline& deadline) {
    std::unique_lock lock(source_.mutex_);
    for (;;) {
      const uint64_t before = source_.spaces_;
      lock.unlock();
      if (!sink_->full()) return;
      sink_->check();
      lock.lock();
      while (source_.spaces_ == before) {
        if (source_.sink_ == nullptr) throw closed();
        if (deadline.passed()) throw Error(Code::kTimeout, "Online", "the queue is full");
        const double seconds = std::clamp(deadline.left_s(), 1e-6, 3600.0);
        source_.changed_.wait_for(lock, std::chrono::duration<double>(seconds));
      }
    }
  }

  static Error closed() {
    return {Code::kClosed, "Online", "the source was stopped, or is not started"};
  }

 private:
  PushSource& source_;
  MessageSink* sink_;
};

bool PushSource::push(Message message, int64_t timeout_ns) {
  if (message.received_ns == 0) message.received_ns = now_ns();
  const Deadline deadline(timeout_ns < 0 ? kForEver : 1e-9 * static_cast<double>(timeout_ns));
  Use use(*this);
  if (use.sink() == nullptr) throw Use::closed();
  use.wait_for_space(deadline);
  return use.sink()->put(message);
}

void PushSource::end(const std::string& error) {
  const Use use(*this);
  if (use.sink() != nullptr) use.sink()->ended(error);
}

void PushSource::start(MessageSink& sink) {
  std::lock_guard lock(mutex_);
  if (sink_ != nullptr) throw Error(Code::kInvalidArgument, "Online", "the source is started");
  sink_ = &sink;
}

void PushSource::acknowledge(std::span<const uint64_t> tokens) {
  if (acknowledged_) acknowledged_(tokens);
}

void PushSource::space() {
  {
    std::lock_guard lock(mutex_);
    ++spaces_;
  }
  changed_.notify_all();
}

void PushSource::stop() {
  std::unique_lock lock(mutex_);
  sink_ = nullptr;
  changed_.notify_all();
  changed_.wait(lock, [&] { return uses_ == 0; });
}

void PushSource::publish(std::string_view, std::span<const std::byte>, int) {
  throw Error(Code::kInvalidArgument, "publish", "this source cannot publish");
}

}  // namespace penstock::online
