#pragma once

#include <functional>
#include <utility>

namespace penstock {

// A check for the waits of this thread that may take long, such as those for a server. The check
// throws to end the wait. Waits call Cancellation::check() several times a second. The innermost
// Cancellation of the thread counts.
class Cancellation {
 public:
  using Check = std::function<void()>;  // empty: never

  explicit Cancellation(Check check)
      : check_(std::move(check)), outer_(std::exchange(innermost_, this)) {}
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;
  ~Cancellation() { innermost_ = outer_; }

  static void check() {
    if (innermost_ != nullptr && innermost_->check_) innermost_->check_();
  }
  // For another thread that works for this one.
  static Check current() { return innermost_ == nullptr ? Check() : innermost_->check_; }

 private:
  static inline thread_local Cancellation* innermost_ = nullptr;
  const Check check_;
  Cancellation* const outer_;
};

}  // namespace penstock
