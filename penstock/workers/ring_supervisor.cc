#include "penstock/workers/ring_supervisor.h"

namespace penstock {

// Even if the ticket is not the worker's any more: other granules may wait for the layout.
void RingSupervisor::withdraw_proposal(uint64_t seq, uint32_t worker) {
  uint32_t proposing = ring_.layout_word(seq, LayoutState::kProposing, worker);
  std::atomic<uint32_t>& layout = ring_.entry_at(seq).layout_state;
  if (layout.compare_exchange_strong(proposing, ring_.layout_word(seq, LayoutState::kNone))) {
    os::futex_wake(layout, 1 << 20, ring_.shared());
  }
}

uint32_t RingSupervisor::reopen(
    uint32_t worker, uint32_t most,
    const std::function<void(const TicketRing::Claim&)>& fail_after_losses, bool charged) {
  ring_.repair_counts();
  uint32_t count = 0;
  for (uint64_t seq = ring_.oldest(), end = ring_.posted(); seq < end; ++seq) {
    withdraw_proposal(seq, worker);
    for (uint32_t g = 0; g < ring_.granules(); ++g) {
      Task& task = ring_.task_at(seq, g);
      const uint64_t word = task.word.load(std::memory_order_acquire);
      const TaskState state = Task::state_of(word);
      if ((state != TaskState::kClaimed && state != TaskState::kWriting) ||
          Task::worker_of(word) != worker || Task::seq_of(word) != seq) {
        continue;
      }
      const TicketRing::Claim claim = ring_.claim_in(seq, g, word);
      if (seq < ring_.head()) {
        task.kind = ResultKind::kNone;
        ring_.finish(claim);
        continue;
      }
      ++count;
      if (charged && claim.losses + 1 >= most) {
        fail_after_losses(claim);
      } else {
        reopen_task(claim, claim.losses + (charged ? 1 : 0));
      }
    }
  }
  SleepingWorkers& sleepers = ring_.sleepers();
  sleepers.withdraw(worker);
  // The worker may have died with a wake-up that it had received, or had to send.
  sleepers.wake_some(1);
  ring_.nudge_consumer();
  return count;
}

void RingSupervisor::reopen_task(const TicketRing::Claim& claim, uint32_t losses) {
  Task& task = *claim.task;
  task.kind = ResultKind::kNone;
  task.length = 0;
  task.claimed_ns.store(0, std::memory_order_relaxed);
  task.in_hand.store(0, std::memory_order_relaxed);
  const uint32_t attempt = Task::attempt_of(claim.word) % 255 + 1;
  const uint32_t owner = ring_.posted_at(claim.seq).owner;
  task.word.store(Task::word_of(claim.seq, 0, attempt, losses, TaskState::kOpen),
                  std::memory_order_seq_cst);
  // After the task is open: a worker that sees the new count finds the task open, or claimed.
  ring_.header().reopens.fetch_add(1, std::memory_order_seq_cst);
  if (owner == kAnyWorker) {
    ring_.sleepers().wake_some(1);
  } else {
    ring_.sleepers().wake(owner);
  }
}

bool RingSupervisor::poison(const TicketRing::Claim& claim, const Call& call, ResultKind kind) {
  const std::span<Poisoned> list = ring_.poisoned_of(claim);
  const uint32_t count = claim.task->poisoned.load(std::memory_order_relaxed);
  if (count >= list.size() || ring_.ending(claim, call)) return false;
  Poisoned& next = list[count];
  if (!ring_.reserve(&next, sizeof(Poisoned))) return false;
  next.call.store(call.word(), std::memory_order_relaxed);
  next.ending.store(uint64_t{claim.worker} << 8 | static_cast<uint64_t>(kind),
                    std::memory_order_relaxed);
  claim.task->poisoned.store(count + 1, std::memory_order_release);
  return true;
}

}  // namespace penstock
