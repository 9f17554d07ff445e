#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace penstock::python {

// Around a call into Python from a thread that the interpreter may end there: CPython before 3.14
// does that at exit by unwinding the thread's stack, through our frames, without the GIL. The
// thread stays where it is instead, until the process is gone. A C++ exception leaves as from
// anywhere: such an end is none, and the runtime does not count it among them.
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
  const int thrown_ = std::uncaught_exceptions();  // when it began
  bool returned_ = false;
};

// As nanobind's gil_scoped_acquire and gil_scoped_release, for threads that the interpreter may end
// while they are without the GIL: a daemon thread that waits for something when the program is
// over.
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

// What a wait without the GIL calls now and then: Ctrl-C ends it, as nanobind's python_error.
void look_for_signals();

}  // namespace penstock::python
