#include "penstock/workers/ticket_failures.h"

#include <algorithm>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/workers/slot.h"

namespace penstock {

// ---- workers that died -------------------------------------------------------------------------

uint32_t TicketFailures::reopen(uint32_t worker, bool charged) {
  uint32_t count = 0;
  for (uint32_t l = 0; l < ring_.lanes(); ++l) {
    const auto lost = [this](const TicketRing::Claim& claim) {
      give_up(claim, in_hand(claim), ResultKind::kLost);
    };
    count += RingSupervisor(ring_.lane(l)).reopen(worker, policy_.max_losses, lost, charged);
  }
  std::erase_if(just_poisoned_,
                [&](const auto& word) { return Task::worker_of(word.second) == worker; });
  return count;
}

// The call of a worker that is dead or lost its ticket.
Call TicketFailures::in_hand(const TicketRing::Claim& claim) {
  return Call::of(ring_.place(claim.worker).in_hand.load(std::memory_order_relaxed));
}

// REQUIRED: the worker of the task is dead, or the task was taken over.
void TicketFailures::give_up(const TicketRing::Claim& claim, const Call& call, ResultKind kind) {
  // This attempt did not make a poisoned call, so another cause ends the workers, and would do so
  // for ever: the ticket is an error.
  if (is_raised(call) || (just_poisoned_.erase({claim.lane, claim.word}) == 0 &&
                          !lane_of(claim).poison(claim, call, kind))) {
    fail(claim, call, kind);
  } else {
    lane_of(claim).reopen_task(claim, 1);
  }
}

void TicketFailures::fail(const TicketRing::Claim& claim, const Call& call, ResultKind kind) {
  claim.task->in_hand.store(call.word(), std::memory_order_relaxed);
  claim.task->kind = kind;
  claim.task->length = 0;
  claim.task->bytes = call.row;
  ring_.lane(claim.lane).finish(claim);
}

// ---- tickets that take too long ----------------------------------------------------------------

int64_t TicketFailures::tick_ns() const {
  if (policy_.timeout_ns < 0) return -1;
  return std::clamp<int64_t>(policy_.timeout_ns / 8, 1'000'000, 50'000'000);
}

std::optional<uint32_t> TicketFailures::check() {
  const uint64_t now = now_ns();
  if (policy_.timeout_ns < 0 || now < next_check_) return std::nullopt;
  next_check_ = now + static_cast<uint64_t>(policy_.timeout_ns) / 16;
  settle_leaving(now);
  for (uint32_t l = 0; l < ring_.lanes(); ++l) {
    if (const auto abandoned = check_lane(ring_.lane(l), now)) return abandoned;
  }
  return std::nullopt;
}

std::optional<uint32_t> TicketFailures::check_lane(TicketRing& lane, uint64_t now) {
  // Withdrawn tickets are checked, too: the ring's place is free only when their workers are done.
  for (uint64_t seq = lane.oldest(), end = lane.posted(); seq < end; ++seq) {
    for (uint32_t g = 0; g < lane.granules(); ++g) {
      Task& task = lane.task_at(seq, g);
      const uint64_t word = task.word.load(std::memory_order_acquire);
      uint64_t since = task.claimed_ns.load(std::memory_order_relaxed);
      if (Task::state_of(word) != TaskState::kClaimed || Task::seq_of(word) != seq) continue;
      if (Task::worker_of(word) >= lane.workers()) continue;  // written by a worker that crashed
      if (since == 0) {
        // Workers read no clock: a ticket's time begins when it is first seen claimed here.
        uint64_t seen = now;
        if (task.claimed_ns.compare_exchange_strong(since, now) && task.word.load() != word) {
          task.claimed_ns.compare_exchange_strong(seen, 0);
        }
        continue;
      }
      if (now < since || now - since < static_cast<uint64_t>(policy_.timeout_ns)) continue;
      const TicketRing::Claim claim = lane.claim_in(seq, g, word);
      if (!lane_of(claim).take_over(claim)) continue;
      ring_.consumer().timeouts.add();
      if (policy_.processes) {
        end_process(claim);
      } else {
        abandon_thread(claim, now);
        return claim.worker;
      }
    }
  }
  return std::nullopt;
}

// The killed process may still write until it is gone. So neither its replacement nor another batch
// may use the memory before.
void TicketFailures::end_process(const TicketRing::Claim& claim) {
  const Call call = in_hand(claim);
  if (!is_raised(call)) {
    // The task stays the process's until its death is noticed (reopen).
    if (lane_of(claim).poison(claim, call, ResultKind::kTimeout)) {
      just_poisoned_.insert({claim.lane, claim.word});
    }
    kill_(claim.worker, false);
    return;
  }
  if (!kill_(claim.worker, true)) claim.entry->tainted.store(1, std::memory_order_relaxed);
  give_up(claim, call, ResultKind::kTimeout);
}

// The thread may stay in user code for ever; Slot::Access keeps it from writing anything then.
void TicketFailures::abandon_thread(const TicketRing::Claim& claim, uint64_t now) {
  WorkerPlace& place = ring_.place(claim.worker);
  while ((place.inside.load(std::memory_order_seq_cst) & (Slot::kWrite - 1)) != 0) {
    std::this_thread::yield();
  }
  claim.entry->tainted.store(1, std::memory_order_relaxed);
  place.serving.store(0);
  leaving_.push_back({claim, in_hand(claim), place.tickets.load(std::memory_order_relaxed),
                      now + static_cast<uint64_t>(policy_.timeout_ns)});
  settle_leaving(now);
}

bool TicketFailures::is_writing(const Leaving& thread) {
  WorkerPlace& place = ring_.place(thread.claim.worker);
  return place.inside.load(std::memory_order_seq_cst) >= Slot::kWrite &&
         place.tickets.load(std::memory_order_relaxed) == thread.tickets;
}

// The granule is reopened only after the abandoned thread has stopped writing into it. If the
// thread does not stop, the batch is an error under any policy, and its memory is not delivered.
void TicketFailures::settle_leaving(uint64_t now) {
  std::erase_if(leaving_, [&](const Leaving& it) {
    const bool stopped = !is_writing(it), raised = is_raised(it.call);
    if (!stopped && !raised && now < it.until_ns) return false;
    TicketRing& lane = ring_.lane(it.claim.lane);
    if (it.claim.seq < lane.head()) {
      it.claim.task->kind = ResultKind::kNone;
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
