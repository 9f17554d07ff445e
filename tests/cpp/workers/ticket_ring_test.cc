// The ring: the transitions of a task's state, and the threads that may make them.
#include "penstock/workers/ticket_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "tests/cpp/workers/ticket_rings.h"

namespace penstock {
namespace {

using testing::drop;
using testing::finish;
using testing::post;
using testing::state;

// ---- states -------------------------------------------------------------------------------------

TEST(TicketRing, a_task_goes_from_idle_to_idle) {
  auto ring = TicketRing::create({4, 1, 2}, false);
  RingConsumer consumer(*ring);
  EXPECT_TRUE(consumer.can_post());
  uint64_t seq = post(*ring);
  EXPECT_EQ(state(*ring, seq), TaskState::kOpen);
  EXPECT_FALSE(ring->ready(seq));

  TicketRing::Claim claim, none;
  ASSERT_TRUE(RingWorker(*ring, 1).claim(claim));
  EXPECT_EQ(state(*ring, seq), TaskState::kClaimed);
  EXPECT_EQ(claim.worker, 1u);
  EXPECT_TRUE(ring->holds(claim));
  EXPECT_FALSE(RingWorker(*ring, 0).claim(none));

  EXPECT_TRUE(ring->begin_result(claim));
  EXPECT_EQ(state(*ring, seq), TaskState::kWriting);
  EXPECT_FALSE(ring->begin_result(claim));
  ring->finish(claim);
  EXPECT_EQ(state(*ring, seq), TaskState::kDone);
  EXPECT_TRUE(ring->ready(seq));
  EXPECT_EQ(ring->task_at(seq, 0).worker, 1u);

  consumer.clear(seq);
  EXPECT_TRUE(ring->idle(seq));
  consumer.advance_head(seq + 1);
  EXPECT_EQ(ring->head(), ring->posted());
  EXPECT_EQ(ring->place(1).tickets.load(), 1u);
}

TEST(TicketRing, a_poisoned_row_takes_no_other_along_and_is_forgotten_with_its_entry) {
  for (uint32_t rows : {1u, 64u, 65u, 300u, 65536u}) {
    for (uint32_t granules : {1u, 3u}) {
      auto ring = TicketRing::create(
          {.entries = 2, .granules = granules, .workers = 1, .rows = rows}, true);
      RingConsumer consumer(*ring);
      auto theirs = TicketRing::open(ring->fd());  // as in a worker process
      for (int round = 0; round < 5; ++round) {    // round the ring
        uint64_t seq = post(*ring, granules);
        TicketRing::Claim claim;
        ASSERT_TRUE(RingWorker(*theirs, 0).claim(claim));
        ASSERT_EQ(claim.granule, 0u);
        TicketRing::Claim ours = ring->claim_in(seq, 0, claim.word);
        EXPECT_FALSE(theirs->any_poisoned(claim));
        const std::set<uint32_t> bad = {0, rows / 2, rows - 1};
        for (uint32_t row : bad) {
          EXPECT_FALSE(theirs->ending(claim, {row}));
          EXPECT_TRUE(RingSupervisor(*ring).poison(
              ours, {row}, row == 0 ? ResultKind::kLost : ResultKind::kTimeout));
          EXPECT_FALSE(
              RingSupervisor(*ring).poison(ours, {row}, ResultKind::kError));  // already poisoned
        }
        EXPECT_TRUE(theirs->any_poisoned(claim));
        for (uint32_t row : bad) {
          const auto ending = theirs->ending(claim, {row});
          ASSERT_TRUE(ending);
          EXPECT_EQ(ending->kind, row == 0 ? ResultKind::kLost : ResultKind::kTimeout) << row;
          EXPECT_EQ(ending->worker, claim.worker);
          EXPECT_FALSE(theirs->ending(claim, {row, 7})) << "another function of that row";
        }
        for (uint32_t row = 0; row < rows; ++row) {
          EXPECT_EQ(theirs->ending(claim, {row}).has_value(), bad.contains(row)) << row;
        }
        finish(*theirs, claim);
        for (uint32_t g = 1; g < granules; ++g) {
          ASSERT_TRUE(RingWorker(*theirs, 0).claim(claim));
          EXPECT_FALSE(theirs->any_poisoned(claim) || theirs->ending(claim, {rows - 1}));
          finish(*theirs, claim);
        }
        consumer.clear(seq);
        consumer.advance_head(seq + 1);
      }
    }
  }
}

TEST(TicketRing, what_is_poisoned_beyond_all_rows_is_refused) {
  auto ring = TicketRing::create({.entries = 2, .granules = 1, .workers = 1, .rows = 1}, true);
  post(*ring, 1);
  TicketRing::Claim claim;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
  uint32_t poisoned = 0;
  while (poisoned < 1000 &&
         RingSupervisor(*ring).poison(claim, {0, poisoned + 1}, ResultKind::kLost))
    ++poisoned;
  EXPECT_EQ(poisoned, kMaxGranuleRows);
  for (uint32_t call = 0; call < 200; ++call) {
    EXPECT_EQ(ring->ending(claim, {0, call}).has_value(), call >= 1 && call <= poisoned) << call;
  }
}

TEST(TicketRing, a_short_batch_is_ready_without_the_granules_that_it_has_not) {
  auto ring = TicketRing::create({4, 5, 1}, false);
  uint64_t seq = post(*ring, 2);
  TicketRing::Claim claim;
  for (uint32_t g = 0; g < 2; ++g) {
    EXPECT_FALSE(ring->ready(seq));
    ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
    EXPECT_EQ(claim.granule, g);
    finish(*ring, claim);
  }
  EXPECT_TRUE(ring->ready(seq));
  EXPECT_FALSE(RingWorker(*ring, 0).claim(claim));
}

TEST(TicketRing, a_full_ring_takes_no_more) {
  auto ring = TicketRing::create({4, 1, 1}, false);
  RingConsumer consumer(*ring);
  ASSERT_EQ(ring->entries(), 4u);
  for (int i = 0; i < 4; ++i) post(*ring);
  EXPECT_FALSE(consumer.can_post());
  TicketRing::Claim claim;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
  finish(*ring, claim);
  EXPECT_FALSE(consumer.can_post());
  consumer.clear(0);
  consumer.advance_head(1);
  EXPECT_TRUE(consumer.can_post());
}

TEST(TicketRing, withdrawing_takes_back_what_is_open_and_leaves_what_is_claimed) {
  auto ring = TicketRing::create({4, 3, 1}, false);
  RingConsumer consumer(*ring);
  uint64_t seq = post(*ring, 3);
  TicketRing::Claim first, second;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(first));
  finish(*ring, first);
  ASSERT_TRUE(RingWorker(*ring, 0).claim(second));
  EXPECT_FALSE(consumer.withdraw(seq));
  EXPECT_EQ(state(*ring, seq, 0), TaskState::kDone);
  EXPECT_EQ(state(*ring, seq, 1), TaskState::kClaimed);
  EXPECT_EQ(state(*ring, seq, 2), TaskState::kIdle);
  EXPECT_TRUE(ring->holds(second));
  finish(*ring, second);
  EXPECT_TRUE(consumer.withdraw(seq));
  EXPECT_FALSE(ring->ready(seq));
}

TEST(TicketRing, withdrawn_work_keeps_its_place_until_it_is_done) {
  auto ring = TicketRing::create({2, 1, 2}, false);
  RingConsumer consumer(*ring);
  uint64_t old = post(*ring);
  TicketRing::Claim zombie, claim;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(zombie));
  EXPECT_FALSE(consumer.withdraw(old));
  consumer.advance_head(ring->posted());
  uint64_t next = post(*ring);
  ASSERT_TRUE(RingWorker(*ring, 1).claim(claim));
  EXPECT_EQ(claim.seq, next);
  finish(*ring, claim);
  consumer.clear(next);
  consumer.advance_head(next + 1);
  EXPECT_FALSE(consumer.can_post());  // the next place is held by the zombie
  finish(*ring, zombie);
  EXPECT_TRUE(consumer.withdraw(old));
  consumer.clear(old);
  EXPECT_TRUE(consumer.can_post());
}

TEST(TicketRing, an_owned_entry_is_for_its_owner_in_order) {
  auto ring = TicketRing::create({8, 1, 3}, false);
  for (uint32_t i = 0; i < 6; ++i) post(*ring, 1, i % 2);
  TicketRing::Claim claim;
  EXPECT_FALSE(RingWorker(*ring, 2).claim(claim));
  for (uint64_t seq : {1, 3, 5}) {
    ASSERT_TRUE(RingWorker(*ring, 1).claim(claim));
    EXPECT_EQ(claim.seq, seq);
  }
  EXPECT_FALSE(RingWorker(*ring, 1).claim(claim));
  for (uint64_t seq : {0, 2, 4}) {
    ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
    EXPECT_EQ(claim.seq, seq);
  }
}

TEST(TicketRing, the_consumer_in_line_claims_one_entries_tasks) {
  auto ring = TicketRing::create({4, 2, 1}, false);
  post(*ring, 2);
  uint64_t seq = post(*ring, 2);
  TicketRing::Claim claim;
  for (uint32_t g = 0; g < 2; ++g) {
    ASSERT_TRUE(RingWorker(*ring, 0).claim_of(seq, claim));
    EXPECT_EQ(claim.seq, seq);
    EXPECT_EQ(claim.granule, g);
  }
  EXPECT_FALSE(RingWorker(*ring, 0).claim_of(seq, claim));
}

// ---- death --------------------------------------------------------------------------------------

TEST(TicketRing, what_a_dead_worker_had_is_open_again) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  for (int i = 0; i < 3; ++i) post(*ring);
  TicketRing::Claim claimed, writing, done, claim;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(claimed));
  ASSERT_TRUE(RingWorker(*ring, 0).claim(writing));
  ASSERT_TRUE(RingWorker(*ring, 0).claim(done));
  ASSERT_TRUE(ring->begin_result(writing));
  finish(*ring, done);
  EXPECT_EQ(RingSupervisor(*ring).reopen(0, 3, drop), 2u);
  EXPECT_EQ(state(*ring, 2), TaskState::kDone);
  for (uint64_t seq : {0, 1}) {
    ASSERT_TRUE(RingWorker(*ring, 1).claim(claim));
    EXPECT_EQ(claim.seq, seq);
    EXPECT_EQ(claim.losses, 1u);
  }
  EXPECT_FALSE(RingWorker(*ring, 1).claim(claim));
  EXPECT_EQ(RingSupervisor(*ring).reopen(0, 3, drop), 0u);
}

TEST(TicketRing, the_third_loss_is_the_callers) {
  auto ring = TicketRing::create({2, 1, 1}, false);
  post(*ring);
  TicketRing::Claim claim;
  std::vector<TicketRing::Claim> given_up;
  auto give_up = [&](const TicketRing::Claim& lost) { given_up.push_back(lost); };
  for (int death = 0; death < 3; ++death) {
    ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
    EXPECT_EQ(RingSupervisor(*ring).reopen(0, 3, give_up), 1u);
    EXPECT_EQ(given_up.size(), death == 2 ? 1u : 0u);
  }
  EXPECT_EQ(given_up[0].seq, 0u);
  EXPECT_EQ(given_up[0].losses, 2u);
  ring->finish(given_up[0]);
  EXPECT_TRUE(ring->ready(0));
}

TEST(TicketRing, a_dead_workers_withdrawn_work_is_just_done) {
  auto ring = TicketRing::create({4, 1, 2}, false);
  RingConsumer consumer(*ring);
  uint64_t seq = post(*ring);
  TicketRing::Claim claim;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
  EXPECT_FALSE(consumer.withdraw(seq));
  consumer.advance_head(ring->posted());
  EXPECT_EQ(RingSupervisor(*ring).reopen(0, 3, drop), 0u);
  EXPECT_TRUE(consumer.withdraw(seq));
}

// The same worker's place may claim the same task again after the first claim was taken away. The
// thread that made the first claim must still detect that it has lost the task.
TEST(TicketRing, a_claim_that_was_taken_away_never_comes_back) {
  auto ring = TicketRing::create({2, 1, 1}, false);
  post(*ring);
  std::vector<TicketRing::Claim> old;
  for (int i = 0; i < 300; ++i) {
    TicketRing::Claim claim;
    ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
    EXPECT_TRUE(ring->holds(claim));
    for (size_t k = old.size() > 200 ? old.size() - 200 : 0; k < old.size(); ++k) {
      EXPECT_FALSE(ring->holds(old[k]));
      EXPECT_FALSE(ring->begin_result(old[k]));
    }
    ASSERT_TRUE(RingSupervisor(*ring).take_over(claim));
    EXPECT_FALSE(ring->holds(claim));
    RingSupervisor(*ring).reopen_task(claim, 0);
    old.push_back(claim);
  }
}

// ---- stress -------------------------------------------------------------------------------------

struct Load {
  uint32_t entries, granules, workers, window;
  bool any;             // take batches in any order
  bool varied = false;  // entries of one granule to all of them
  uint32_t granules_of(uint64_t seq) const {
    return varied ? 1 + static_cast<uint32_t>(seq * 0x9E3779B97F4A7C15 >> 40) % granules : granules;
  }
};

// Every task is done once, and no thread sleeps for ever: all waits here are unbounded.
void run_load(const Load& load, uint64_t count) {
  auto ring = TicketRing::create({load.entries, load.granules, load.workers}, false);
  RingConsumer consumer(*ring);
  std::vector<std::atomic<uint32_t>> done(count * load.granules);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < load.workers; ++w) {
    threads.emplace_back([&, w] {
      RingWorker end(*ring, w);
      TicketRing::Claim claim;
      while (!ring->closed()) {
        if (!end.claim(claim)) {
          end.wait();
          continue;
        }
        done[claim.seq * load.granules + claim.granule].fetch_add(1);
        claim.task->bytes = claim.seq;
        if ((claim.seq + w) % 64 == 0) std::this_thread::yield();
        ring->begin_result(claim);
        ring->finish(claim);
      }
    });
  }
  std::set<uint64_t> taken;
  while (ring->head() < count) {
    while (ring->posted() < count && ring->posted() - ring->head() < load.window &&
           consumer.can_post()) {
      post(*ring, load.granules_of(ring->posted()));
    }
    consumer.wake_workers(false);
    uint64_t head = ring->head();
    consumer.wait(load.any ? TicketRing::kAnySeq : head, -1);
    for (uint64_t seq = head; seq < ring->posted() && (load.any || seq == head); ++seq) {
      if (!ring->ready(seq)) continue;
      for (uint32_t g = 0; g < load.granules_of(seq); ++g) {
        EXPECT_EQ(ring->task_at(seq, g).bytes, seq);
      }
      consumer.clear(seq);
      taken.insert(seq);
    }
    while (taken.contains(ring->head())) consumer.advance_head(ring->head() + 1);
  }
  ring->close();
  for (auto& thread : threads) thread.join();
  for (uint64_t seq = 0; seq < count; ++seq) {
    for (uint32_t g = 0; g < load.granules; ++g) {
      ASSERT_EQ(done[seq * load.granules + g].load(), g < load.granules_of(seq) ? 1u : 0u);
    }
  }
}

TEST(TicketRingStress, every_task_is_done_once_and_no_wake_up_is_lost) {
  run_load({2, 1, 3, 1, false}, 4000);  // ping-pong
  run_load({4, 1, 3, 2, true}, 4000);
  run_load({16, 1, 2, 12, false}, 20000);
  run_load({16, 5, 4, 12, false}, 3000);
  run_load({16, 3, 4, 16, true}, 3000);
  run_load({256, 1, 4, 200, false}, 40000);
  run_load({2, 4, 3, 1, false, true}, 4000);
  run_load({16, 6, 4, 12, false, true}, 4000);
  run_load({16, 6, 4, 16, true, true}, 4000);
}

// ---- sharing ------------------------------------------------------------------------------------

TEST(TicketRing, it_is_opened_by_its_descriptor) {
  auto ring = TicketRing::create({5, 3, 2}, true);
  EXPECT_EQ(ring->entries(), 8u);
  auto other = TicketRing::open(ring->fd());
  EXPECT_EQ(other->entries(), 8u);
  EXPECT_EQ(other->granules(), 3u);
  EXPECT_EQ(other->workers(), 2u);
  uint64_t seq = post(*ring, 3);
  TicketRing::Claim claim;
  while (RingWorker(*other, 1).claim(claim)) finish(*other, claim);
  EXPECT_TRUE(ring->ready(seq));
  ring->close();
  EXPECT_TRUE(other->closed());
}

TEST(TicketRing, what_is_no_ring_is_refused) {
  os::Fd file = os::memory_file("penstock-test");
  os::resize_file(file.get(), 1 << 20);
  EXPECT_THROW(TicketRing::open(file.get()), Error);
  EXPECT_THROW(TicketRing::open(-1), Error);
  EXPECT_THROW(TicketRing::create({4, 1, kMaxWorkers + 1}, false), Error);
}

}  // namespace
}  // namespace penstock
