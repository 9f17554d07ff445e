#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace penstock::train {

// Threads, one for each tower, that do one thing together and then wait for the next.
//
//   waiting ──begin()──> working ──the job returns, or throws──> waiting
//           ──~TowerCrew()──> ended
//
// wait() returns when none works: what was written before begin() the jobs see, and what they wrote
// is seen after wait().
//
// Threads: one at a time for everything here. A job may not use the crew.
class TowerCrew {
 public:
  using Job = std::function<void(size_t tower)>;
  struct Failure {
    size_t tower;
    std::exception_ptr error;
  };

  explicit TowerCrew(size_t towers);  // std::system_error: no more threads
  ~TowerCrew();                       // waits for those that work
  TowerCrew(const TowerCrew&) = delete;
  TowerCrew& operator=(const TowerCrew&) = delete;

  size_t size() const { return errors_.size(); }
  // Calls job(tower) on each tower's thread. REQUIRED: none works.
  void begin(Job job);
  // Until none works. Of several that threw, the first tower's exception.
  std::optional<Failure> wait();

 private:
  void work(size_t tower);
  void end();

  std::mutex mutex_;
  std::condition_variable begun_, done_;
  Job job_;  // changes only while none works
  uint64_t jobs_ = 0;
  size_t working_ = 0;
  bool ending_ = false;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::train
