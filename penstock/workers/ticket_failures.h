#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "penstock/workers/ring_supervisor.h"

namespace penstock {

// Tickets that take too long, and what becomes of a ticket that its worker lost: it is opened again
// without the call that ended its worker, or it is an error.
//
// States of a ticket that takes too long:
//
//   - claimed -> taken: RingSupervisor::take_over.
//   - taken -> done, or open again: its process is gone, or its thread is not in a Slot::Write. A
//     ticket whose timeout is raised as an error does not wait for its thread.
//   - taken -> leaving: its thread is in a Slot::Write.
//   - leaving -> done, or open again: the thread left the Write.
//   - leaving -> done (kTimeout): the thread did not leave it within another timeout.
//
// One thread at a time.
class TicketFailures {
 public:
  struct Policy {
    bool raise = true;        // a lost or timed-out ticket is an error; else its call is poisoned
    int64_t timeout_ns = -1;  // of a ticket; < 0: none
    uint32_t max_losses = 3;
    bool processes = true;  // a stuck process is killed; a stuck thread can only be abandoned
  };
  // `kill(worker, wait)`: kills the worker's process; `wait`: until it is gone. False: it is not
  // gone.
  TicketFailures(TicketRing& ring, const Policy& policy,
                 std::function<bool(uint32_t worker, bool wait)> kill)
      : ring_(ring), policy_(policy), kill_(std::move(kill)) {}
  TicketFailures(const TicketFailures&) = delete;
  TicketFailures& operator=(const TicketFailures&) = delete;

  // How often to call check(); < 0: never.
  int64_t tick_ns() const;
  // Ends tickets that took too long. Returns the worker whose thread was abandoned, and has to be
  // replaced; then call again.
  std::optional<uint32_t> check();
  // The worker is dead: its tickets are opened again, or fail. Returns how many there were.
  // `charged`: it counts as a loss of each of them.
  uint32_t reopen(uint32_t worker, bool charged = true);

 private:
  // An abandoned thread in a Slot::Write. Its task stays writing until the thread stops or a
  // further timeout is over.
  struct Leaving {
    TicketRing::Claim claim;
    Call call;
    uint32_t tickets;  // claimed in its place so far; if there are more, the thread has ended
    uint64_t until_ns;
  };
  std::optional<uint32_t> check_lane(TicketRing& lane, uint64_t now);
  void end_process(const TicketRing::Claim& claim);
  void abandon_thread(const TicketRing::Claim& claim, uint64_t now);
  void settle_leaving(uint64_t now);
  bool is_writing(const Leaving& thread);
  Call in_hand(const TicketRing::Claim& claim);
  RingSupervisor lane_of(const TicketRing::Claim& claim) {
    return RingSupervisor(ring_.lane(claim.lane));
  }
  bool is_raised(const Call& call) const {
    return policy_.raise || call.what == kCollating || call.what == kUnknownCall;
  }
  void give_up(const TicketRing::Claim& claim, const Call& call, ResultKind kind);
  void fail(const TicketRing::Claim& claim, const Call& call, ResultKind kind);

  TicketRing& ring_;
  const Policy policy_;
  std::function<bool(uint32_t, bool)> kill_;
  // Claims (lane, word) whose workers were killed because of a newly poisoned row.
  std::set<std::pair<uint32_t, uint64_t>> just_poisoned_;
  std::vector<Leaving> leaving_;
  uint64_t next_check_ = 0;
};

}  // namespace penstock
