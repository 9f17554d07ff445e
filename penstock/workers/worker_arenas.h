#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "penstock/memory/region.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The arenas of a ring's worker processes, as opened in the consumer's process. An arena is added
// when its worker announces it. After its worker died, it is kept until the consumer has taken or
// dropped every ticket that was posted by then; afterwards only leases keep it.
//
// Any thread.
class WorkerArenas {
 public:
  explicit WorkerArenas(TicketRing& ring) : ring_(ring) {}
  WorkerArenas(const WorkerArenas&) = delete;
  WorkerArenas& operator=(const WorkerArenas&) = delete;

  void add(uint32_t worker, uint32_t number, std::shared_ptr<Region> region);
  void orphan(uint32_t worker);  // the worker died
  // Whether the arena was announced, so that region() will not wait.
  bool knows(uint32_t number);
  // Waits until the arena is announced, because a result may overtake the announcement. nullptr
  // once this or the ring is closed, and after a minute: a worker that crashed may write any
  // number.
  std::shared_ptr<Region> region(uint32_t number);
  // Releases arenas that only leases may need.
  void drop_orphans();
  void close();   // ends the waits in region()
  void forget();  // all arenas

 private:
  struct Arena {
    // nullptr: it was dropped; the entry records that the arena existed.
    std::shared_ptr<Region> region;
    uint32_t worker = 0;
    bool orphan = false;
    std::array<uint64_t, kMaxLanes> until{};  // by lane
  };
  void drop_orphans_locked();

  TicketRing& ring_;
  std::mutex mutex_;  // of all that follow
  std::condition_variable announced_;
  std::map<uint32_t, Arena> arenas_;
  bool any_orphans_ = false;
  bool closed_ = false;
};

}  // namespace penstock
