#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "penstock/workers/board.h"
#include "penstock/workers/supervisor.h"

namespace penstock {

// The threads that serve a board: started once, replaced when they are stuck, ended together.
//
// States of a place: empty ──start──> busy ──returns──> ended ──(reused or joined)──> empty
//                                     busy ──timeout──> abandoned ──returns──> ended
//
// Any thread may call anything, save that start() comes first.
class LoaderCrew {
 public:
  // `work(place)` serves the board until it closes; it keeps alive whatever it needs, and the crew,
  // for an abandoned thread may outlast the crew's owner. If it throws, the crew gives up.
  // `supervisor`: nullptr where nothing times out.
  using Work = std::function<void(uint32_t place)>;
  LoaderCrew(Board& board, Supervisor* supervisor) : board_(board), supervisor_(supervisor) {}

  // Error kSystem when the machine has no more threads.
  void start(uint32_t workers, Work work);
  bool started() const;
  // Closes the board and waits for the threads that are not abandoned, at most `patience_ns`
  // (< 0: for ever); the others are left to end by themselves. Whoever comes while another closes
  // waits for that one, too; but not a thread of the crew. False: the caller is one of those.
  bool close(int64_t patience_ns);
  // Whether no thread is left that works, or is stuck: nothing of what they use is needed any more.
  bool ended() const;
  // Why the crew gave up, if it did.
  std::exception_ptr fatal() const;

 private:
  enum class At { kEmpty, kBusy, kAbandoned, kEnded };
  struct Place {
    At at = At::kEmpty;
    std::thread thread;
    std::thread::id runs;  // which one, also when it is detached
  };
  // What threads share with the crew: it lives as long as any of them.
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    std::vector<Place> places;
  };

  void start_at(uint32_t place);
  void watch();
  void replace(uint32_t place);
  void give_up(std::exception_ptr why);

  Board& board_;
  Supervisor* supervisor_;
  Work work_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread watcher_;
  std::exception_ptr fatal_;
  bool started_ = false, closing_ = false, closed_ = false;
};

}  // namespace penstock
