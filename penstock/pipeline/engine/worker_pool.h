#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "penstock/workers/supervisor.h"
#include "penstock/workers/thread_places.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The worker threads of a ring. They are started once, replaced when stuck, and ended together.
//
// States of a place:
// - empty -> busy: a thread is started.
// - busy -> ended: the thread returned. Then it is joined -> empty.
// - busy -> abandoned: the thread's ticket timed out. When the thread returns -> ended.
//
// Threads: any; start() must be the first call.
class WorkerPool {
 public:
  // `work(place)` serves the ring until it closes. It must keep everything alive that it uses,
  // including the pool, because an abandoned thread may outlive the pool's owner. If it throws, the
  // pool ends. `supervisor`: nullptr if no ticket times out.
  using Work = std::function<void(uint32_t place)>;
  WorkerPool(TicketRing& ring, Supervisor* supervisor) : ring_(ring), supervisor_(supervisor) {}

  // Error kSystem: the system cannot create more threads.
  void start(uint32_t workers, Work work);
  bool started() const;
  // Closes the ring and waits for the threads that are not abandoned, at most `timeout_ns` (< 0:
  // forever). A second caller waits for the first, unless it is a thread of the pool. False: the
  // caller is a thread of the pool, and nothing was waited for.
  bool close(int64_t timeout_ns);
  // Whether all threads have ended, including abandoned ones: the memory that they use can be
  // freed.
  bool ended() const;
  // The error that ended the pool, if any.
  std::exception_ptr fatal() const;

 private:
  enum class At { kEmpty, kBusy, kAbandoned, kEnded };
  struct Place {
    At at = At::kEmpty;
    std::thread thread;
    std::thread::id runs;  // id of the thread, also when detached
  };
  // Shared with the threads: lives as long as any of them.
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    std::vector<Place> places;
    std::optional<ThreadPlaces> free;
  };

  void start_at(uint32_t place);
  void watch();
  void replace(uint32_t place);
  void give_up(std::exception_ptr why);

  TicketRing& ring_;
  Supervisor* supervisor_;
  Work work_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread watcher_;
  std::exception_ptr fatal_;
  bool started_ = false, closing_ = false, closed_ = false;
};

}  // namespace penstock
