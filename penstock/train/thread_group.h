#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock::train {

// How a ThreadGroup starts threads and waits for them. By default it uses C++ threads; Python steps
// need threads that Python made.
struct Threading {
  // Starts a thread that calls `body`; returns a function that joins it. May throw.
  using Start = std::function<std::function<void()>(size_t number, std::function<void()> body)>;
  Start start = {};
  // Called every 50 ms by the thread that waits for the group; an exception ends the wait.
  std::function<void()> while_waiting = {};
};

// A fixed number of threads that do one job together and then wait for the next.
//
//   waiting ──begin()──> working ──the job returns, or throws──> waiting
//           ──~ThreadGroup()──> ended
//
// wait() returns when no thread works. Jobs see all writes before begin(); the caller of wait()
// sees all writes of the jobs.
//
// Threads: one at a time for all members. A job must not use the group.
class ThreadGroup {
 public:
  using Job = std::function<void(size_t number)>;
  struct Failure {
    size_t number;
    std::exception_ptr error;
  };

  // An exception from a start is thrown here, after the threads before it were joined.
  ThreadGroup(size_t count, Threading threading = {});
  ~ThreadGroup();  // waits for working threads
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  size_t size() const { return errors_.size(); }
  // Calls job(number) on each thread. REQUIRED: none works.
  void begin(Job job);
  // Waits until no thread works. Of several exceptions, returns that of the lowest number.
  std::optional<Failure> wait();
  // Waits until no thread works, or until `time`; whether no thread works.
  bool wait_until(std::chrono::steady_clock::time_point time);

 private:
  void work(size_t number);
  void end();

  const Threading threading_;
  std::mutex mutex_;
  std::condition_variable begun_, done_;
  Job job_;  // changes only while none works
  uint64_t jobs_ = 0;
  size_t working_ = 0;
  bool ending_ = false;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::function<void()>> joins_;
};

}  // namespace penstock::train
