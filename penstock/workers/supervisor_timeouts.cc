// The supervisor's timeouts: takes tickets from workers that take too long, and fails tickets that
// cannot be done.
#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/workers/process_end.h"
#include "penstock/workers/supervisor.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

void Supervisor::fail_after_losses(void* self, const TicketRing::Claim& claim) {
  auto* supervisor = static_cast<Supervisor*>(self);
  supervisor->give_up(claim, supervisor->in_hand(claim), ResultKind::kLost);
}

// The call of a worker that is dead or lost its ticket.
Call Supervisor::in_hand(const TicketRing::Claim& claim) {
  return Call::of(ring_.place(claim.worker).in_hand.load(std::memory_order_relaxed));
}

// REQUIRED: the worker of the task is dead, or the task was taken over.
void Supervisor::give_up(const TicketRing::Claim& claim, const Call& call, ResultKind kind) {
  // This attempt did not make a poisoned call, so another cause ends the workers, and would do so
  // for ever: the ticket is an error.
  if (is_raised(call) || (just_poisoned_.erase({claim.lane, claim.word}) == 0 &&
                          !ring_.lane(claim.lane).poison(claim, call, kind))) {
    fail(claim, call, kind);
  } else {
    ring_.lane(claim.lane).reopen_task(claim, 1);
  }
}

void Supervisor::fail(const TicketRing::Claim& claim, const Call& call, ResultKind kind) {
  claim.task->in_hand.store(call.word(), std::memory_order_relaxed);
  claim.task->kind = kind;
  claim.task->length = 0;
  claim.task->bytes = call.row;
  ring_.lane(claim.lane).finish(claim);
}

void Supervisor::check_timeouts(Event& event) {
  uint64_t now = now_ns();
  if (now < next_timeout_check_) return;
  next_timeout_check_ = now + static_cast<uint64_t>(policy_.timeout_ns) / 16;
  settle_leaving(now);
  for (uint32_t l = 0; l < ring_.lanes() && event.kind == Kind::kNothing; ++l) {
    check_timeouts_of(ring_.lane(l), now, event);
  }
}

void Supervisor::check_timeouts_of(TicketRing& lane, uint64_t now, Event& event) {
  // Withdrawn tickets are checked, too: the ring's place is free only when their workers are done.
  for (uint64_t seq = lane.oldest(), end = lane.posted(); seq < end; ++seq) {
    for (uint32_t g = 0; g < lane.granules(); ++g) {
      Task& task = lane.task_at(seq, g);
      uint64_t word = task.word.load(std::memory_order_acquire);
      uint64_t since = task.claimed_ns.load(std::memory_order_relaxed);
      if (Task::state_of(word) != TaskState::kClaimed || Task::seq_of(word) != seq) continue;
      if (since == 0) {
        // Workers read no clock: a ticket's time begins when it is first seen claimed here.
        uint64_t seen = now;
        if (task.claimed_ns.compare_exchange_strong(since, now) && task.word.load() != word) {
          task.claimed_ns.compare_exchange_strong(seen, 0);
        }
        continue;
      }
      if (now < since || now - since < static_cast<uint64_t>(policy_.timeout_ns)) continue;
      TicketRing::Claim claim = lane.claim_in(seq, g, word);
      if (!lane.take_over(claim)) continue;
      ring_.consumer().timeouts.add();
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

// The killed process may still write until it is gone. So neither its replacement nor another batch
// may use the memory before.
void Supervisor::end_process(const TicketRing::Claim& claim) {
  const Call call = in_hand(claim);
  const bool raised = is_raised(call);
  if (!raised) {
    // The task stays the process's until its death is noticed (reopen).
    if (ring_.lane(claim.lane).poison(claim, call, ResultKind::kTimeout)) {
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
  if (!gone) claim.entry->tainted.store(1, std::memory_order_relaxed);
  give_up(claim, call, ResultKind::kTimeout);
}

// The thread may stay in user code for ever; Slot::Access keeps it from writing anything then.
void Supervisor::abandon_thread(const TicketRing::Claim& claim, uint64_t now) {
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

bool Supervisor::is_writing(const Leaving& thread) {
  WorkerPlace& place = ring_.place(thread.claim.worker);
  return place.inside.load(std::memory_order_seq_cst) >= Slot::kWrite &&
         place.tickets.load(std::memory_order_relaxed) == thread.tickets;
}

// The granule is reopened only after the abandoned thread has stopped writing into it. If the
// thread does not stop, the batch is an error under any policy, and its memory is not delivered.
void Supervisor::settle_leaving(uint64_t now) {
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
