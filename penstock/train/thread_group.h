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

// How a ThreadGroup gets its threads and waits for them. By default threads are the engine's own;
// steps that are Python need threads that Python has made.
struct Threading {
  // Starts a thread that calls `body`; returns a function that waits for its end. May throw.
  using Start = std::function<std::function<void()>(size_t number, std::function<void()> body)>;
  Start start = {};
  // Called every 50 ms by the thread that waits for the group; what it throws ends the wait.
  std::function<void()> while_waiting = {};
};

// A fixed number of threads that do one job together and then wait for the next.
//
//   waiting ──begin()──> working ──the job returns, or throws──> waiting
//           ──~ThreadGroup()──> ended
//
// wait() returns when no thread works: the jobs see what was written before begin(), and the caller
// of wait() sees what the jobs wrote.
//
// Threads: one at a time for everything here. A job may not use the group.
class ThreadGroup {
 public:
  using Job = std::function<void(size_t number)>;
  struct Failure {
    size_t number;
    std::exception_ptr error;
  };

  // Throws what a start throws, once the threads before it have ended.
  ThreadGroup(size_t count, Threading threading = {});
  ~ThreadGroup();  // waits for threads that work
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  size_t size() const { return errors_.size(); }
  // Calls job(number) on each thread. REQUIRED: none works.
  void begin(Job job);
  // Until no thread works. Of several that threw, the exception of the lowest number.
  std::optional<Failure> wait();
  // The same for at most so long; whether no thread works.
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
