// The supervisor's clock: what takes too long is taken from its worker, and what cannot be done is
// given up.
#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/workers/process_end.h"
#include "penstock/workers/supervisor.h"
#include "penstock/workers/worker.h"

namespace penstock {

void Supervisor::too_often(void* self, const Board::Claim& claim) {
  auto* supervisor = static_cast<Supervisor*>(self);
  supervisor->give_up(claim, supervisor->in_hand(claim), ResultKind::kLost);
}

// Of a worker that is dead or lost its ticket.
Call Supervisor::in_hand(const Board::Claim& claim) {
  return Call::of(board_.place(claim.worker).in_hand.load(std::memory_order_relaxed));
}

// The unit is ours: its worker is dead, or it was taken over.
void Supervisor::give_up(const Board::Claim& claim, const Call& call, ResultKind kind) {
  // What was poisoned before was not tried, this time: so it is something else that takes the
  // worker, and would for ever.
  if (is_raised(call) || (just_poisoned_.erase({claim.lane, claim.word}) == 0 &&
                          !board_.lane(claim.lane).poison(claim, call, kind))) {
    fail(claim, call, kind);
  } else {
    board_.lane(claim.lane).reopen_unit(claim, 1);
  }
}

void Supervisor::fail(const Board::Claim& claim, const Call& call, ResultKind kind) {
  claim.unit->in_hand.store(call.word(), std::memory_order_relaxed);
  claim.unit->kind = kind;
  claim.unit->length = 0;
  claim.unit->bytes = call.row;
  board_.lane(claim.lane).finish(claim);
}

void Supervisor::check_timeouts(Event& event) {
  uint64_t now = now_ns();
  if (now < next_timeout_check_) return;
  next_timeout_check_ = now + static_cast<uint64_t>(policy_.timeout_ns) / 16;
  settle_leaving(now);
  for (uint32_t l = 0; l < board_.lanes() && event.kind == Kind::kNothing; ++l) {
    check_timeouts_of(board_.lane(l), now, event);
  }
}

void Supervisor::check_timeouts_of(Board& lane, uint64_t now, Event& event) {
  // Withdrawn tickets too: the ring's place is free only when their workers are.
  for (uint64_t seq = lane.oldest(), end = lane.posted(); seq < end; ++seq) {
    for (uint32_t g = 0; g < lane.granules(); ++g) {
      Unit& unit = lane.unit_at(seq, g);
      uint64_t word = unit.word.load(std::memory_order_acquire);
      uint64_t since = unit.claimed_ns.load(std::memory_order_relaxed);
      if (Unit::state_of(word) != UnitState::kClaimed || Unit::seq_of(word) != seq) continue;
      if (since == 0) {
        // Workers read no clock: a ticket's time begins when it is first seen here.
        uint64_t seen = now;
        if (unit.claimed_ns.compare_exchange_strong(since, now) && unit.word.load() != word) {
          unit.claimed_ns.compare_exchange_strong(seen, 0);
        }
        continue;
      }
      if (now < since || now - since < static_cast<uint64_t>(policy_.timeout_ns)) continue;
      Board::Claim claim = lane.claim_in(seq, g, word);
      if (!lane.take_over(claim)) continue;
      board_.consumer().timeouts.add();
      if (policy_.processes) {
        end_process(claim);
      } else {
        abandon_thread(claim, now);
        event.kind = Kind::kAbandoned;
        event.worker = claim.worker;
        return;
      }
    }
  }
}

// What the killed one still writes until it is gone must not meet its successor, or the batch that
// gets the memory next.
void Supervisor::end_process(const Board::Claim& claim) {
  const Call call = in_hand(claim);
  const bool raised = is_raised(call);
  if (!raised) {
    // The unit stays its own until its death is seen (reopen).
    if (board_.lane(claim.lane).poison(claim, call, ResultKind::kTimeout)) {
      just_poisoned_.insert({claim.lane, claim.word});
    }
  }
  bool gone = true;
  {
    std::lock_guard lock(mutex_);
    os::Fd& pidfd = processes_[claim.worker].pidfd;
    if (pidfd) {
      os::send_signal(pidfd.get(), SIGKILL);
      gone = !raised || ended_within(pidfd.get(), kKillNs);
    }
  }
  if (!raised) return;
  if (!gone) claim.post->tainted.store(1, std::memory_order_relaxed);
  give_up(claim, call, ResultKind::kTimeout);
}

// It may be in user code for ever, and then nothing of it is ever written: see Slot::Access.
void Supervisor::abandon_thread(const Board::Claim& claim, uint64_t now) {
  WorkerPlace& place = board_.place(claim.worker);
  while ((place.inside.load(std::memory_order_seq_cst) & (Slot::kWrite - 1)) != 0) {
    std::this_thread::yield();
  }
  claim.post->tainted.store(1, std::memory_order_relaxed);
  place.serving.store(0);
  leaving_.push_back({claim, in_hand(claim), place.tickets.load(std::memory_order_relaxed),
                      now + static_cast<uint64_t>(policy_.timeout_ns)});
  settle_leaving(now);
}

bool Supervisor::is_writing(const Leaving& thread) {
  WorkerPlace& place = board_.place(thread.claim.worker);
  return place.inside.load(std::memory_order_seq_cst) >= Slot::kWrite &&
         place.tickets.load(std::memory_order_relaxed) == thread.tickets;
}

// Another worker makes the granule again only once the abandoned one has stopped writing into it.
// If that one does not stop, the batch is an error under any policy: its memory is not delivered.
void Supervisor::settle_leaving(uint64_t now) {
  std::erase_if(leaving_, [&](const Leaving& it) {
    const bool stopped = !is_writing(it), raised = is_raised(it.call);
    if (!stopped && !raised && now < it.until_ns) return false;
    Board& lane = board_.lane(it.claim.lane);
    if (it.claim.seq < lane.head()) {
      it.claim.unit->kind = ResultKind::kNone;
      lane.finish(it.claim);
    } else if (stopped || raised) {
      give_up(it.claim, it.call, ResultKind::kTimeout);
    } else {
      fail(it.claim, it.call, ResultKind::kTimeout);
    }
    return true;
  });
}

}  // namespace penstock
