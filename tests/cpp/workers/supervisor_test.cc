// Worker processes under a supervisor: killed, stuck, out of space, and closed at any moment.
#include "penstock/workers/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_worker.h"
#include "process_world.h"

namespace penstock {
namespace {

using testing::kGranuleRows;
using testing::kRows;
using testing::Life;
using World = testing::ProcessWorld;

void die() { raise(SIGKILL); }

// A worker that calls `run` for every task that it claims, until the ring is closed.
template <class Run>
void serve_claims(TicketRing& ring, uint32_t worker, Run run) {
  RingWorker end(ring, worker);
  TicketRing::Claim claim;
  while (!ring.closed()) end.claim(claim) ? run(claim) : end.wait();
}

// ---- deaths -------------------------------------------------------------------------------------

TEST(Supervisor, workers_that_live_make_an_epoch) {
  World world({.spares = 0});
  world.take_all();
  EXPECT_EQ(world.ring().consumer().reissued.get(), 0u);
}

TEST(Supervisor, a_dead_worker_loses_no_batch_wherever_it_dies) {
  for (uint32_t row : {0u, 3u, 4u, kRows}) {
    for (bool after : {false, true}) {
      if (row == kRows && after) continue;
      World world({.behaviour = [=](const Ticket& t, uint32_t r, bool a, uint32_t times) {
        if (t.step % 7 == 2 && r == row && a == after && times < 1) die();
      }});
      world.take_all();
      world.until_event(Supervisor::Kind::kDied, 3);
      EXPECT_EQ(world.ring().consumer().reissued.get(), 3u);
      for (auto& event : world.events()) {
        EXPECT_EQ(event.kind, Supervisor::Kind::kDied);
      }
    }
  }
}

TEST(Supervisor, a_worker_that_dies_after_its_result_lost_nothing) {
  std::atomic<int>* deaths = static_cast<std::atomic<int>*>(os::reserve_mapping(-1, 4096, true));
  {
    World world({.spares = 3, .life = [deaths](TicketRing& ring, uint32_t worker, int) {
                   serve_claims(ring, worker, [&](const TicketRing::Claim& claim) {
                     ring.begin_result(claim);
                     claim.task->kind = ResultKind::kPacket;
                     claim.task->bytes = claim.seq;
                     // As finish() does, but without a wake-up.
                     if (claim.seq == 3 && deaths->fetch_add(1) < 3) {
                       claim.task->word.store(Task::with_state(claim.word, TaskState::kDone));
                       die();
                     }
                     ring.finish(claim);
                   });
                 }});
    world.feed().begin_epoch();
    for (uint64_t step = 0; step < 20; ++step) {
      EXPECT_EQ(world.take(step), ResultKind::kPacket);
      world.feed().deliver(1, 1);
    }
    EXPECT_EQ(world.ring().consumer().reissued.get(), 0u);
  }
  os::unmap(deaths, 4096);
}

TEST(Supervisor, a_row_that_kills_three_workers_is_an_error_that_names_it) {
  World world({.behaviour = [](const Ticket& t, uint32_t row, bool, uint32_t) {
    if (t.step == 3 && row == 6) die();
  }});
  world.feed().begin_epoch();
  for (uint64_t step = 0; step < 3; ++step) EXPECT_EQ(world.take(step), ResultKind::kRows);
  Task failed{};
  EXPECT_EQ(world.take(3, {}, &failed), ResultKind::kLost);
  EXPECT_EQ(failed.bytes, 6u - kGranuleRows);  // counted from the granule's first row
  world.until_event(Supervisor::Kind::kDied, 3);
  EXPECT_EQ(world.ring().consumer().reissued.get(), 3u);
}

TEST(Supervisor, a_deadly_row_is_left_out_under_a_policy_that_says_so) {
  World world({.policy = {.raise = false},
               .behaviour = [](const Ticket& t, uint32_t row, bool after, uint32_t) {
                 if (t.step == 3 && row == 6 && !after) die();
               }});
  world.feed().begin_epoch();
  for (uint64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(world.take(step, std::pair{uint64_t{3}, 6u}), ResultKind::kRows);
  }
  world.until_event(Supervisor::Kind::kDied, 3);
  EXPECT_EQ(world.events().size(), 3u);
}

TEST(Supervisor, deaths_are_reported_with_the_tickets_that_the_worker_had_done) {
  World world({.spares = 2, .life = [](TicketRing& ring, uint32_t worker, int) {
                 if (worker == 1 && ring.place(1).counters.deaths.get() == 0) die();
                 RingWorker end(ring, worker);
                 while (!ring.closed()) end.wait();
               }});
  world.until_event(Supervisor::Kind::kDied);
  EXPECT_EQ(world.events()[0].worker, 1u);
  EXPECT_EQ(world.events()[0].tickets, 0u);  // before its first ticket
}

// ---- timeouts -----------------------------------------------------------------------------------

void hang() {
  for (;;) pause();
}

TEST(Supervisor, a_stuck_process_is_killed_and_its_row_named) {
  World world({.policy = {.timeout_ns = 100'000'000},
               .behaviour = [](const Ticket& t, uint32_t row, bool after, uint32_t) {
                 if (t.step == 2 && row == 5 && after) hang();
               }});
  world.feed().begin_epoch();
  for (uint64_t step = 0; step < 2; ++step) EXPECT_EQ(world.take(step), ResultKind::kRows);
  Task failed{};
  EXPECT_EQ(world.take(2, {}, &failed), ResultKind::kTimeout);
  EXPECT_EQ(failed.bytes, 1u);
  EXPECT_EQ(world.ring().consumer().timeouts.get(), 1u);
  world.until_event(Supervisor::Kind::kDied);
}

TEST(Supervisor, a_stuck_row_is_left_out_under_a_policy_that_says_so) {
  World world({.policy = {.raise = false, .timeout_ns = 100'000'000},
               .behaviour = [](const Ticket& t, uint32_t row, bool after, uint32_t) {
                 if (t.step == 2 && row == 5 && !after) hang();
               }});
  world.feed().begin_epoch();
  for (uint64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(world.take(step, std::pair{uint64_t{2}, 5u}), ResultKind::kRows);
  }
}

TEST(Supervisor, what_dies_or_hangs_with_all_rows_in_hand_is_raised_under_any_policy) {
  for (bool dies : {true, false}) {
    World world({.policy = {.raise = false, .timeout_ns = dies ? 60'000'000'000 : 1'000'000'000},
                 .behaviour = [=](const Ticket& t, uint32_t row, bool, uint32_t) {
                   if (t.step == 2 && row == kRows) dies ? die() : hang();
                 }});
    world.feed().begin_epoch();
    for (uint64_t step = 0; step < 2; ++step) EXPECT_EQ(world.take(step), ResultKind::kRows);
    Task failed{};
    EXPECT_EQ(world.take(2, {}, &failed), dies ? ResultKind::kLost : ResultKind::kTimeout);
    EXPECT_EQ(failed.bytes, 0u);
    world.until_event(Supervisor::Kind::kDied);
  }
}

class NoRows : public BatchMemory {
 public:
  explicit NoRows(int link) : link_(link) {}
  std::byte* at(uint64_t) override { return &byte_; }
  void request(TicketRing&) override { link_send(link_, {LinkMessage::kSpace, 0, 0, 0}); }

 private:
  int link_;
  std::byte byte_{};
};

class Nobody : public TicketRunner {
  void run(const Ticket&, Slot&) override {}
};

// The batch's other granule waits for the layout that the killed worker was about to write.
TEST(Supervisor, a_process_killed_in_the_middle_of_a_layout_stops_nobody) {
  World world({.policy = {.timeout_ns = 100'000'000},
               .life = [](TicketRing& ring, uint32_t worker, int link) {
                 NoRows memory(link);
                 Nobody nobody;
                 serve_claims(ring, worker, [&](const TicketRing::Claim& claim) {
                   Slot slot(ring, claim, &memory, nobody);
                   std::atomic<uint32_t>& layout = claim.entry->layout_state;
                   const uint32_t half =
                       ring.layout_word(claim.seq, LayoutState::kProposing, worker);
                   if (claim.seq == 0 && claim.granule == 0) {
                     layout.store(half);
                     hang();
                   }
                   while (claim.seq == 0 && layout == ring.layout_word(0, LayoutState::kNone)) {
                     std::this_thread::yield();
                   }
                   slot.memory(std::as_bytes(std::span("rows", 4)), 100);
                   slot.finish_inline(ResultKind::kRows, 1, {});
                 });
               }});
  world.feed().begin_epoch();
  EXPECT_EQ(world.take(0), ResultKind::kTimeout);
}

TEST(Supervisor, a_stuck_process_with_withdrawn_work_is_killed_too) {
  World world({.workers = 1,
               .policy = {.timeout_ns = 100'000'000},
               .behaviour = [](const Ticket& t, uint32_t, bool, uint32_t) {
                 if (t.step == 2) hang();
               }});
  world.feed().begin_epoch();
  for (uint64_t step = 0; step < 2; ++step) EXPECT_EQ(world.take(step), ResultKind::kRows);
  BatchEntry& stuck = world.ring().entry_at(2);
  while (Task::state_of(world.ring().task_at(2, 0).word.load()) != TaskState::kClaimed) {
    std::this_thread::yield();
  }
  EXPECT_EQ(stuck.step, 2u);
  world.feed().seek({0, 0, 3});
  for (uint64_t step = 3; step < 20; ++step) EXPECT_EQ(world.take(step), ResultKind::kRows);
  while (!world.feed().settle(-1)) {
  }
}

// ---- the link -----------------------------------------------------------------------------------

// Claims one ticket and answers it over the link with `bytes` bytes, of which it sends `sent`.
Life spills(uint64_t bytes, uint64_t sent) {
  return [=](TicketRing& ring, uint32_t worker, int link) {
    serve_claims(ring, worker, [&](const TicketRing::Claim& claim) {
      std::vector<std::byte> packet(sent, std::byte(claim.seq + 1));
      LinkHeader header{LinkMessage::kPayload, uint32_t(ResultKind::kPacket),
                        claim.seq * ring.granules() + claim.granule, bytes};
      link_send(link, header, packet);
      if (sent < bytes) hang();
    });
  };
}

TEST(Supervisor, a_result_without_space_in_the_arena_comes_over_the_link) {
  constexpr uint64_t kBytes = 3 << 20;
  World world({.spares = 0, .life = spills(kBytes, kBytes)});
  world.feed().begin_epoch();
  for (uint64_t step = 0; step < 20; ++step) {
    Task task{};
    EXPECT_EQ(world.take(step, {}, &task), ResultKind::kPacket);
    EXPECT_EQ(task.block.arena, kSpilled);
    EXPECT_GT(task.length, Slot::kInline);
    for (uint32_t g = 0; g < 2; ++g) {
      Task& granule = world.ring().task_at(world.feed().current_seq(), g);
      std::unique_ptr<Spill> spill = take_spill(granule);
      granule.kind = ResultKind::kNone;
      ASSERT_EQ(spill->size, kBytes);
      for (uint64_t at = 0; at < kBytes; at += 4096) {
        ASSERT_EQ(spill->bytes[at], std::byte(step + 1));
      }
    }
    world.feed().deliver(1, 1);
  }
}

TEST(Supervisor, closing_ends_a_worker_in_the_middle_of_a_message) {
  uint64_t begin = now_ns();
  {
    World world({.spares = 0, .life = spills(1 << 20, 1 << 10)});
    world.feed().begin_epoch();
    world.feed().poll(0);
    RingConsumer(world.ring()).wake_workers(true);
    while (world.ring().place(0).tickets.load() == 0) std::this_thread::yield();
    world.supervisor().close(0);
  }
  EXPECT_LT(now_ns() - begin, 20'000'000'000u);
}

TEST(Supervisor, an_announced_arena_is_found_by_its_number) {
  World world({.workers = 1, .spares = 0, .life = [](TicketRing& ring, uint32_t worker, int link) {
                 auto region = Region::create(Region::Kind::kShared);
                 link_send(link, {LinkMessage::kArena, 0, 42, 0}, {}, region->fd());
                 RingWorker end(ring, worker);
                 while (!ring.closed()) end.wait();
               }});
  EXPECT_NE(world.supervisor().arenas().region(42), nullptr);
  std::thread closer([&] { world.supervisor().close(1'000'000'000); });
  EXPECT_EQ(world.supervisor().arenas().region(43), nullptr);
  closer.join();
}

TEST(Supervisor, what_the_consumer_returns_is_not_in_use_while_its_worker_sleeps) {
  auto* refs = static_cast<Ref*>(os::reserve_mapping(-1, 4096, true));
  auto life = [refs](TicketRing& ring, uint32_t worker, int link) {
    Allocator::Options options;
    options.ledger = ring.ledger(worker, 42);
    Allocator arena(Region::create(Region::Kind::kShared), options);
    for (int i : {0, 1}) {
      void* block = arena.allocate(1 << 20);
      refs[i] = arena.share(block).value();
      arena.release(block);
    }
    link_send(link, {LinkMessage::kArena, 0, 42, 0}, {}, arena.region()->fd());
    RingWorker end(ring, worker);
    while (!ring.closed()) end.wait();
  };
  Lease first, last;
  {
    World world({.workers = 1, .spares = 0, .life = life});
    auto region = world.supervisor().arenas().region(42);
    ASSERT_NE(region, nullptr);
    std::atomic<uint64_t>& in_use = world.ring().place(0).memory.in_use;
    first = Lease(region, refs[0]);
    last = Lease(region, refs[1]);
    EXPECT_EQ(BlocksInUse::bytes(in_use.load()), 2u << 20);
    first.reset();
    EXPECT_EQ(BlocksInUse::bytes(in_use.load()), 1u << 20);
  }
  last.reset();  // the ring is destroyed, its memory is not
  os::unmap(refs, 4096);
}

TEST(Supervisor, a_worker_that_cannot_start_says_why) {
  std::string why(100'000, 'w');
  World world({.workers = 1, .spares = 0, .life = [why](TicketRing&, uint32_t, int link) {
                 link_send(link, {LinkMessage::kFailed, 0, 0, why.size()},
                           std::as_bytes(std::span(why.data(), why.size())));
               }});
  world.until_event(Supervisor::Kind::kFailed);
  EXPECT_EQ(world.events().back().detail, why);
}

TEST(Supervisor, an_update_reaches_every_living_worker) {
  World world({.spares = 0, .life = [](TicketRing& ring, uint32_t worker, int link) {
                 LinkHeader header;
                 os::Fd descriptor;
                 if (!link_receive(link, header, descriptor)) return;
                 uint64_t value = 0;
                 if (pread(descriptor.get(), &value, sizeof(value), 0) != sizeof(value)) return;
                 ring.place(worker).ticket_ns.store(header.number * 1000 + value);
                 RingWorker end(ring, worker);
                 while (!ring.closed()) end.wait();
               }});
  os::Fd file = os::memory_file("penstock-test");
  uint64_t value = 7;
  ASSERT_EQ(pwrite(file.get(), &value, sizeof(value), 0), ssize_t(sizeof(value)));
  world.supervisor().send_update(5, file.get());
  for (uint32_t w = 0; w < 2; ++w) {
    while (world.ring().place(w).ticket_ns.load() == 0) std::this_thread::yield();
    EXPECT_EQ(world.ring().place(w).ticket_ns.load(), 5007u);
  }
}

// ---- closing ------------------------------------------------------------------------------------

TEST(Supervisor, closing_kills_workers_that_do_not_end) {
  uint64_t begin = now_ns();
  {
    World world({.behaviour = [](const Ticket&, uint32_t, bool, uint32_t) { hang(); }});
    world.feed().begin_epoch();
    world.feed().poll(0);
    RingConsumer(world.ring()).wake_workers(true);
    world.supervisor().close(10'000'000);
  }
  EXPECT_LT(now_ns() - begin, 20'000'000'000u);
}

TEST(Supervisor, a_process_attached_too_late_is_killed) {
  auto ring = TicketRing::create({4, 1, 1}, true);
  Allocator arena(Region::create(Region::Kind::kShared));
  pid_t pid = testing::start_child([] {
    hang();
    return true;
  });
  Supervisor supervisor(*ring, arena, {});
  supervisor.close(0);
  auto [ours, theirs] = link_pair();
  supervisor.attach(0, os::open_process(pid), std::move(ours));
  int status = testing::status_of(pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(supervisor.wait().kind, Supervisor::Kind::kClosed);
}

TEST(Supervisor, closing_from_another_thread_ends_waiting) {
  for (int round = 0; round < 100; ++round) {
    auto ring = TicketRing::create({4, 1, 1}, false);
    Allocator arena(Region::create(Region::Kind::kPrivate));
    Supervisor supervisor(*ring, arena, {});
    std::thread closer([&] { supervisor.close(0); });
    EXPECT_EQ(supervisor.wait().kind, Supervisor::Kind::kClosed);
    closer.join();
  }
}

}  // namespace
}  // namespace penstock
