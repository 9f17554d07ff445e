#pragma once

#include <nanobind/nanobind.h>

#include <mutex>

#include "gil.h"

namespace penstock::python {

// Acquired without the GIL: otherwise two Python threads could deadlock.
class ConsumerLock {
 public:
  explicit ConsumerLock(std::timed_mutex& mutex) : mutex_(mutex) {
    if (mutex_.try_lock()) return;
    WithoutGil unlocked;
    mutex_.lock();
  }
  ConsumerLock(const ConsumerLock&) = delete;
  ConsumerLock& operator=(const ConsumerLock&) = delete;
  ~ConsumerLock() { mutex_.unlock(); }

 private:
  std::timed_mutex& mutex_;
};

}  // namespace penstock::python
