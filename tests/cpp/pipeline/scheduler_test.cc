// The scheduler: when tickets are posted, and in which order batches are delivered.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/workers/ring_worker.h"
#include "tests/cpp/pipeline/scheduler_world.h"

namespace penstock {
namespace {

using testing::kRowBytes;
using testing::World;

// ---- window -------------------------------------------------------------------------------------

TEST(Scheduler, as_much_is_posted_as_queue_and_workers_hold) {
  World world({.length = 100, .queue = 3, .workers = 2});
  EXPECT_EQ(world.in_flight(), 0u);
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
  EXPECT_EQ(world.in_flight(), 0u);  // nothing before begin_epoch
  world.scheduler().begin_epoch();
  EXPECT_EQ(world.in_flight(), 5u);
  for (uint64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(world.take(0), (Position{0, 0, step}));
    EXPECT_EQ(world.in_flight(), 5u);
  }
}

TEST(Scheduler, the_budget_of_bytes_bounds_it_too_but_for_one) {
  for (uint64_t batches : {0, 1, 2, 4}) {
    World world({.length = 30, .queue = 6, .max_bytes = batches * kRowBytes});
    world.scheduler().begin_epoch();
    world.take(0);
    for (int i = 0; i < 10; ++i) world.take(0);  // posted before the size was known
    EXPECT_EQ(world.in_flight(), std::max<uint64_t>(batches, 1));
  }
}

TEST(Scheduler, bytes_that_another_holder_gives_back_are_for_further_tickets) {
  World world({.length = 60, .queue = 6, .max_bytes = 4 * kRowBytes});
  ByteBudget::Holder other(world.budget(), nullptr);
  ASSERT_TRUE(other.take(2 * kRowBytes));
  world.scheduler().begin_epoch();
  for (int i = 0; i < 10; ++i) world.take(0);
  EXPECT_EQ(world.in_flight(), 2u);
  other.give_back(2 * kRowBytes);
  world.scheduler().make_ahead();
  EXPECT_EQ(world.in_flight(), 4u);
  EXPECT_EQ(world.budget().used(), 4 * kRowBytes);
}

TEST(Scheduler, a_holder_that_waits_gets_the_bytes_of_delivered_batches) {
  World world({.length = 60, .queue = 6, .max_bytes = 4 * kRowBytes});
  ByteBudget::Holder other(world.budget(), nullptr);
  world.scheduler().begin_epoch();
  for (int i = 0; i < 10; ++i) world.take(0);
  EXPECT_EQ(world.in_flight(), 4u);
  EXPECT_FALSE(other.take(3 * kRowBytes));
  for (int i = 0; i < 5; ++i) world.take(0);
  EXPECT_EQ(world.in_flight(), 1u) << "the minimum is left";
  EXPECT_TRUE(other.take(3 * kRowBytes));
  EXPECT_EQ(world.budget().used(), 4 * kRowBytes);
  other.give_back(3 * kRowBytes);
  world.take(0);
  EXPECT_EQ(world.in_flight(), 4u);
}

TEST(Scheduler, with_a_slow_start_each_delivered_batch_brings_one_ticket_more) {
  World world(
      {.length = 60, .queue = 6, .workers = 2, .max_bytes = 100 * kRowBytes, .slow_start = true});
  world.scheduler().begin_epoch();
  for (uint64_t delivered = 0; delivered < 20; ++delivered) {
    EXPECT_EQ(world.in_flight(), std::min<uint64_t>(8, 2 + delivered));
    world.take(0);
  }
}

TEST(Scheduler, tickets_that_were_withdrawn_hold_no_bytes) {
  World world({.length = 60, .queue = 6, .max_bytes = 4 * kRowBytes, .pause = true});
  const ByteBudget::Holder other(world.budget(), nullptr);  // alone, it would count nothing
  world.scheduler().begin_epoch();
  for (int i = 0; i < 10; ++i) world.take(0);
  EXPECT_EQ(world.budget().used(), 4 * kRowBytes);
  world.scheduler().seek({0, 0, 3});
  EXPECT_EQ(world.budget().used(), 0u);
  world.scheduler().begin_epoch();
  EXPECT_EQ(world.budget().used(), 4 * kRowBytes);
}

TEST(Scheduler, batches_that_count_no_bytes_fill_the_queue_too) {
  World world({.length = 30, .queue = 6, .max_bytes = 1000});
  world.scheduler().begin_epoch();
  EXPECT_EQ(world.in_flight(), 1u);  // the size is unknown
  world.work(0);
  ASSERT_EQ(world.scheduler().poll(0), Scheduler::Poll::kBatch);
  world.ring().task_at(0, 0).kind = ResultKind::kNone;  // taken
  world.scheduler().deliver(0, 1);
  EXPECT_EQ(world.in_flight(), 7u);
}

TEST(Scheduler, prefetching_runs_across_the_end_of_an_epoch_unless_it_is_to_pause) {
  for (bool pause : {false, true}) {
    World world({.length = 4, .queue = 5, .pause = pause});
    world.scheduler().begin_epoch();
    EXPECT_EQ(world.in_flight(), pause ? 4u : 6u);
    for (uint64_t step = 0; step < 4; ++step) EXPECT_EQ(world.take(0), (Position{0, 0, step}));
    EXPECT_EQ(world.scheduler().position(), (Position{1, 0, 0}));
    EXPECT_EQ(world.take(0), std::nullopt);
    EXPECT_EQ(world.in_flight(), pause ? 0u : 6u);
    world.scheduler().begin_epoch();
    EXPECT_EQ(world.take(1), (Position{1, 0, 0}));
  }
}

TEST(Scheduler, an_empty_epoch_ends_at_once) {
  World world({.length = 0});
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    world.scheduler().begin_epoch();
    EXPECT_EQ(world.take(epoch), std::nullopt);
    EXPECT_EQ(world.scheduler().position().epoch, epoch + 1);
  }
}

// ---- order --------------------------------------------------------------------------------------

TEST(Scheduler, batches_that_are_done_early_wait_for_their_turn) {
  World world({.length = 10, .queue = 3});
  world.scheduler().begin_epoch();
  for (uint64_t seq : {3, 1, 2}) world.work(seq);
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
  EXPECT_EQ(world.scheduler().depth(), 3u);
  world.work(0);
  for (uint64_t step = 0; step < 4; ++step) EXPECT_EQ(world.take(0)->step, step);
}

TEST(Scheduler, an_unordered_feed_takes_them_as_they_are_done) {
  World world({.length = 6, .queue = 3, .ordered = false});
  world.scheduler().begin_epoch();
  world.work(2);
  EXPECT_EQ(world.take(0)->step, 2u);
  world.work(1);
  EXPECT_EQ(world.take(0)->step, 1u);
  EXPECT_EQ(world.scheduler().position(), (Position{0, 0, 0}));
  EXPECT_EQ(world.scheduler().ahead(), (std::set<uint64_t>{1, 2}));
  world.work(4);
  EXPECT_EQ(world.take(0)->step, 4u);
  world.work(0);
  EXPECT_EQ(world.take(0)->step, 0u);
  EXPECT_EQ(world.scheduler().position(), (Position{0, 0, 3}));
  EXPECT_EQ(world.scheduler().ahead(), (std::set<uint64_t>{4}));
  // The next epoch's batches are not taken before all of this epoch.
  for (uint64_t seq = world.ring().head(); seq < world.ring().posted(); ++seq) {
    if (world.ring().entry_at(seq).epoch == 1) world.work(seq);
  }
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
  world.work_all();
  std::set<uint64_t> rest{world.take(0)->step, world.take(0)->step};
  EXPECT_EQ(rest, (std::set<uint64_t>{3, 5}));
  EXPECT_EQ(world.take(0), std::nullopt);
  EXPECT_TRUE(world.scheduler().ahead().empty());
}

// ---- errors, skips, ends ------------------------------------------------------------------------

TEST(Scheduler, after_a_failure_the_position_is_the_failed_ticket) {
  World world({.length = 10, .queue = 3});
  world.scheduler().begin_epoch();
  world.take(0);
  world.work_all();
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kBatch);
  world.scheduler().fail();
  EXPECT_EQ(world.scheduler().position(), (Position{0, 0, 1}));
  EXPECT_EQ(world.in_flight(), 0u);
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
  EXPECT_EQ(world.in_flight(), 0u);  // nothing is made before a request
  world.scheduler().begin_epoch();
  EXPECT_EQ(world.take(0), (Position{0, 0, 1}));
  EXPECT_EQ(world.ring().consumer().errors.get(), 1u);
}

TEST(Scheduler, a_skipped_batch_counts_as_a_step_and_not_as_delivered) {
  World world({.length = 4, .queue = 3});
  world.scheduler().begin_epoch();
  world.work_all();
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kBatch);
  world.scheduler().skip();
  for (uint64_t step = 1; step < 4; ++step) EXPECT_EQ(world.take(0)->step, step);
  EXPECT_EQ(world.take(0), std::nullopt);
  EXPECT_EQ(world.ring().consumer().delivered.get(), 3u);
  EXPECT_EQ(world.ring().consumer().epochs.get(), 1u);
}

TEST(Scheduler, streams_are_dealt_out_to_fewer_workers) {
  World world({.queue = 6, .workers = 2}, std::make_unique<RoundRobinTickets>(3, 1, 2));
  world.scheduler().begin_epoch();
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
  for (uint64_t step = 0; step < 6; ++step) {
    BatchEntry& entry = world.ring().entry_at(step);
    EXPECT_EQ(entry.stream, step % 3);
    EXPECT_EQ(entry.owner, step % 3 % 2);
  }
}

TEST(Scheduler, an_epoch_of_streams_ends_with_the_last_of_them) {
  World world({.queue = 4, .workers = 1, .pause = true},
              std::make_unique<RoundRobinTickets>(2, 1, 2));
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    world.scheduler().begin_epoch();
    uint64_t length[2] = {2, 5};
    std::vector<uint64_t> seen;
    for (;;) {
      Scheduler::Poll poll = world.scheduler().poll(epoch);
      if (poll == Scheduler::Poll::kEpochEnd) break;
      if (poll == Scheduler::Poll::kWait) {
        // Each stream's owner makes its next ticket, or reports the end.
        BatchEntry& entry = world.ring().entry_at(world.ring().head());
        EXPECT_EQ(entry.owner, entry.step % 2);
        auto claim = world.claim(entry.owner);
        ASSERT_TRUE(claim);
        Ticket ticket = ticket_of(*claim);
        claim->task->bytes = ticket.step;
        ASSERT_TRUE(world.ring().begin_result(*claim));
        claim->task->kind =
            ticket.step / 2 < length[ticket.stream] ? ResultKind::kNone : ResultKind::kEnd;
        world.ring().finish(*claim);
        continue;
      }
      Task& task = world.ring().task_at(world.scheduler().current_seq(), 0);
      if (task.kind == ResultKind::kEnd) {
        world.scheduler().end_stream();
      } else {
        seen.push_back(task.bytes);
        world.scheduler().deliver(1, 1);
      }
    }
    EXPECT_EQ(seen, (std::vector<uint64_t>{0, 1, 2, 3, 5, 7, 9}));
    EXPECT_EQ(world.scheduler().position(), (Position{epoch + 1, 0, 0}));
    EXPECT_EQ(world.in_flight(), 0u);
    EXPECT_EQ(world.scheduler().poll(epoch), Scheduler::Poll::kEpochEnd);
    EXPECT_EQ(world.in_flight(), 0u);  // the next epoch waits for begin_epoch
  }
}

constexpr uint32_t kLongRows = 1000;  // checking whether all are ready takes microseconds

class OneStream : public Tickets {
 public:
  std::optional<uint64_t> steps(uint64_t, uint64_t) override { return std::nullopt; }
  Described describe(const Position&, BatchEntry& entry) override {
    entry.rows = kLongRows;
    return Described::kPosted;
  }
  uint32_t streams() const override { return 1; }
};

TEST(Scheduler, a_stream_does_not_end_before_what_it_gave_last) {
  for (int round = 0; round < 20; ++round) {
    World world({.batch = kLongRows, .queue = 2, .ordered = false}, std::make_unique<OneStream>());
    world.scheduler().begin_epoch();
    std::vector<TicketRing::Claim> claims(2 * kLongRows);
    for (TicketRing::Claim& claim : claims) ASSERT_TRUE(RingWorker(world.ring(), 1).claim(claim));
    for (size_t i = 1; i + 1 < claims.size(); ++i) world.finish(claims[i]);
    // Both become ready while the scheduler checks the second.
    std::thread worker([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      world.finish(claims.front());
      world.finish(claims.back());
    });
    Scheduler::Poll poll;
    while ((poll = world.scheduler().poll(0)) == Scheduler::Poll::kWait) {
    }
    uint64_t seq = world.scheduler().current_seq();
    worker.join();
    ASSERT_EQ(poll, Scheduler::Poll::kBatch);
    ASSERT_EQ(seq, 0u);
  }
}

// ---- closing ------------------------------------------------------------------------------------

TEST(Scheduler, closing_from_another_thread_ends_any_wait) {
  for (bool ordered : {true, false}) {
    for (int round = 0; round < 50; ++round) {
      World world({.length = 20, .queue = 4, .ordered = ordered});
      world.scheduler().begin_epoch();
      std::thread closer([&] { world.ring().close(); });
      while (!world.ring().closed()) world.scheduler().wait(-1);
      closer.join();
      EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
      auto before = world.ring().posted();
      world.scheduler().seek({1, 0, 0});
      world.scheduler().begin_epoch();
      EXPECT_EQ(world.ring().posted(), before);
    }
  }
}

}  // namespace
}  // namespace penstock
