#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

namespace penstock::python {

// Protects a call into Python from a thread that the interpreter may end during the call. At exit,
// CPython before 3.14 ends such a thread by unwinding its stack without the GIL. This class blocks
// the thread instead, until the process has ended. C++ exceptions pass through normally: a forced
// unwind is not a C++ exception, and std::uncaught_exceptions() does not count it.
//
//   StayWhenEnded stay;
//   PyObject* value = PyObject_GetItem(...);
//   stay.returned();
class StayWhenEnded {
 public:
  StayWhenEnded() = default;
  StayWhenEnded(const StayWhenEnded&) = delete;
  StayWhenEnded& operator=(const StayWhenEnded&) = delete;
  ~StayWhenEnded() {
    if (!returned_ && std::uncaught_exceptions() == thrown_) wait_for_the_end();
  }
  void returned() { returned_ = true; }

 private:
  [[noreturn]] static void wait_for_the_end();
  const int thrown_ = std::uncaught_exceptions();  // at construction
  bool returned_ = false;
};

// As nanobind's gil_scoped_acquire and gil_scoped_release, for threads that the interpreter may end
// while they do not hold the GIL, such as a daemon thread that waits when the program ends.
class WithGil {
 public:
  WithGil() {
    StayWhenEnded stay;
    state_ = PyGILState_Ensure();
    stay.returned();
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() noexcept(false) {
    StayWhenEnded stay;
    PyEval_RestoreThread(state_);
    stay.returned();
  }

 private:
  PyThreadState* const state_;
};

// Acquires a mutex without the GIL: otherwise two Python threads could deadlock.
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

// Lets the consumer acquire the GIL in competition with worker threads. A worker whose function
// releases the GIL for a moment, as NumPy's functions do, wakes a waiting thread but acquires the
// GIL again before that thread runs, for up to 5 ms. So between two tickets a worker checks this
// class, and waits until the consumer has the GIL.
class GilHandover {
 public:
  // Called by the consumer: before it acquires the GIL, and when it has it.
  void want() { state_.store(kWanted, std::memory_order_seq_cst); }
  void have();

  // Called by a worker.
  bool wanted() const { return state_.load(std::memory_order_relaxed) != kNobody; }
  // Without the GIL: waits until the consumer has it, or until a limit of time.
  void wait();

 private:
  static constexpr uint32_t kNobody = 0, kWanted = 1, kWaitedFor = 2;
  std::atomic<uint32_t> state_{kNobody};
};

// Gives other Python threads the GIL while one thread works without a wait. One thread, with the
// GIL.
class GilBreaks {
 public:
  // Called between two pieces of work. Every 20 ms it releases the GIL for a moment, and runs
  // Python's signal handlers. Throws nanobind's python_error.
  void attend();

 private:
  uint64_t attended_ns_ = 0, looked_ns_ = 0;
  uint32_t unlooked_ = 0;  // calls until the clock is read again
};

// Called periodically by waits without the GIL: on Ctrl-C it throws nanobind's python_error.
void look_for_signals();

}  // namespace penstock::python
