#pragma once

#include <nanobind/nanobind.h>

#include <exception>

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

// Called periodically by waits without the GIL: on Ctrl-C it throws nanobind's python_error.
void look_for_signals();

}  // namespace penstock::python
