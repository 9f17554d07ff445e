// A worker's Slot: the layout that granules agree on, its space, tickets that are taken away.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/ticket_runner.h"
#include "tests/cpp/errors.h"

namespace penstock {
namespace {

using testing::code_of;

constexpr uint64_t kRowsBytes = 1 << 20;

std::span<const std::byte> layout_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct OneSlotRing {
  explicit OneSlotRing(uint32_t granules, size_t max_bytes = SIZE_MAX)
      : ring(TicketRing::create({4, granules, 4}, false)),
        arena(Region::create(Region::Kind::kPrivate), {.max_bytes = max_bytes}),
        memory(arena) {}

  uint64_t post() {
    BatchEntry& next = RingConsumer(*ring).next_entry();
    next.epoch = next.base = next.step = next.version = 0;
    next.rows = next.granules = ring->granules();
    next.owner = kAnyWorker;
    next.stream = 0;
    next.input_offset = 0;
    uint64_t seq = next.seq;
    RingConsumer(*ring).publish(next);
    return seq;
  }
  TicketRing::Claim claim(uint32_t worker) {
    TicketRing::Claim claim;
    EXPECT_TRUE(RingWorker(*ring, worker).claim(claim));
    return claim;
  }

  std::unique_ptr<TicketRing> ring;
  Allocator arena;
  LocalMemory memory;
};

class Idle : public TicketRunner {
  void run(const Ticket&, Slot&) override {}
};
Idle idle;

// ---- layouts ------------------------------------------------------------------------------------

TEST(Slot, granules_of_one_batch_share_its_memory) {
  OneSlotRing world(3);
  uint64_t seq = world.post();
  std::byte* base = nullptr;
  for (uint32_t w = 0; w < 3; ++w) {
    Slot slot(*world.ring, world.claim(w), &world.memory, idle);
    std::byte* rows = slot.memory(layout_of("abc"), kRowsBytes, w + 7);
    ASSERT_NE(rows, nullptr);
    if (w == 0) base = rows;
    EXPECT_EQ(rows, base);
    EXPECT_EQ(world.ring->entry_at(seq).layout_row, 7u);  // of the first proposal
    EXPECT_EQ(slot.memory(layout_of("abcd"), kRowsBytes), nullptr);
    EXPECT_EQ(slot.memory(layout_of("abd"), kRowsBytes), nullptr);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(slot.layout().data()), 3), "abc");
    EXPECT_TRUE(slot.finish_inline(ResultKind::kRows, 0, {}));
  }
  EXPECT_TRUE(world.ring->ready(seq));
  EXPECT_EQ(world.arena.stats().live_blocks, 1u);
}

TEST(Slot, many_threads_agree_on_one_layout) {
  for (int round = 0; round < 100; ++round) {
    OneSlotRing world(4);
    uint64_t seq = world.post();
    std::vector<std::byte*> rows(4);
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < 4; ++w) {
      threads.emplace_back([&, w] {
        Slot slot(*world.ring, world.claim(w), &world.memory, idle);
        std::string_view mine = w % 2 == 0 ? "even" : "odd";
        rows[w] = slot.memory(layout_of(mine), 4096);
        if (rows[w] != nullptr) {
          Slot::Write ours(slot);
          EXPECT_TRUE(static_cast<bool>(ours));
          rows[w][w] = std::byte(w);
        }
        slot.finish_inline(ResultKind::kRows, 0, {});
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(world.ring->ready(seq));
    EXPECT_EQ(rows[0], rows[2]);
    EXPECT_EQ(rows[1], rows[3]);
    EXPECT_NE(rows[0] == nullptr, rows[1] == nullptr);
    EXPECT_EQ(world.arena.stats().live_blocks, 1u);
  }
}

TEST(Slot, memory_that_the_entry_has_already_is_used_if_it_is_enough) {
  OneSlotRing world(1);
  for (uint64_t has : {kRowsBytes / 2, kRowsBytes, 2 * kRowsBytes}) {
    BatchEntry& next = RingConsumer(*world.ring).next_entry();
    next.rows = next.granules = 1;
    next.owner = kAnyWorker;
    next.input_offset = 0;
    void* space = world.arena.allocate(has);
    next.block_offset = world.arena.region()->offset_of(space);
    next.block_bytes = has;
    uint64_t seq = next.seq;
    RingConsumer(*world.ring).publish(next);
    Slot slot(*world.ring, world.claim(0), &world.memory, idle);
    std::byte* rows = slot.memory(layout_of("x"), kRowsBytes);
    if (has >= kRowsBytes) {
      EXPECT_EQ(rows, space);
    }
    EXPECT_GE(next.block_bytes, kRowsBytes);
    slot.finish_inline(ResultKind::kRows, 0, {});
    EXPECT_EQ(world.arena.stats().live_blocks, seq + 1);  // smaller blocks were released
  }
}

TEST(Slot, a_layout_of_too_many_arrays_is_refused) {
  OneSlotRing world(1);
  world.post();
  Slot slot(*world.ring, world.claim(0), &world.memory, idle);
  EXPECT_THROW(slot.memory(layout_of(std::string(kLayoutBytes + 1, 'x')), 1), Error);
}

// ---- space
// ---------------------------------------------------------------------------------------

TEST(Slot, the_lowest_batch_fails_where_there_is_no_space) {
  OneSlotRing world(1, 4 * kRowsBytes);
  world.post();
  Slot slot(*world.ring, world.claim(0), &world.memory, idle);
  EXPECT_EQ(code_of([&] { slot.memory(layout_of("x"), 64 * kRowsBytes); }), Code::kOutOfMemory);
}

TEST(Slot, a_later_batch_waits_until_there_is_space) {
  OneSlotRing world(1, 8 * kRowsBytes);
  void* hog = world.arena.allocate(6 * kRowsBytes);
  world.post();
  uint64_t later = world.post();
  world.claim(0);
  TicketRing::Claim second = world.claim(1);
  second.task->claimed_ns.store(1000);
  std::thread waits([&] {
    Slot slot(*world.ring, second, &world.memory, idle);
    EXPECT_NE(slot.memory(layout_of("x"), 4 * kRowsBytes), nullptr);
    EXPECT_GT(slot.waited_ns(), 0u);
    // The time that it waited for space does not count against it.
    EXPECT_EQ(second.task->claimed_ns.load(), 1000 + slot.waited_ns());
    slot.finish_inline(ResultKind::kRows, 0, {});
  });
  while (BatchEntry::layout_state_of(world.ring->entry_at(later).layout_state.load()) !=
             LayoutState::kProposed ||
         second.task->claimed_ns.load() != kClockStopped) {
    std::this_thread::yield();
  }
  world.arena.release(hog);
  waits.join();
  EXPECT_TRUE(world.ring->ready(later));
}

TEST(Slot, a_wait_for_space_ends_when_the_batch_is_withdrawn) {
  OneSlotRing world(1, 4 * kRowsBytes);
  world.post();
  world.post();
  TicketRing::Claim first = world.claim(0), second = world.claim(1);
  std::thread waits([&] {
    Slot slot(*world.ring, second, &world.memory, idle);
    EXPECT_EQ(code_of([&] { slot.memory(layout_of("x"), 64 * kRowsBytes); }), Code::kClosed);
    slot.finish_inline(ResultKind::kNone, 0, {});
  });
  while (second.task->claimed_ns.load() != kClockStopped) std::this_thread::yield();
  RingConsumer(*world.ring).withdraw(1);
  RingConsumer(*world.ring).advance_head(2);
  waits.join();
  EXPECT_TRUE(RingConsumer(*world.ring).withdraw(1));
  EXPECT_TRUE(world.ring->holds(first));
}

TEST(Slot, a_wait_for_space_ends_when_the_ring_closes) {
  OneSlotRing world(1, 4 * kRowsBytes);
  world.post();
  world.post();
  world.claim(0);
  TicketRing::Claim second = world.claim(1);
  std::thread waits([&] {
    Slot slot(*world.ring, second, &world.memory, idle);
    EXPECT_EQ(code_of([&] { slot.memory(layout_of("x"), 64 * kRowsBytes); }), Code::kClosed);
  });
  while (second.task->claimed_ns.load() != kClockStopped) std::this_thread::yield();
  world.ring->close();
  waits.join();
}

// Several threads allocate space at once, for several entries; each entry gets exactly one block.
TEST(Slot, space_is_allocated_once_whichever_thread_looks_for_it) {
  for (int round = 0; round < 50; ++round) {
    OneSlotRing world(1);
    for (int i = 0; i < 4; ++i) world.post();
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < 4; ++w) {
      threads.emplace_back([&, w] {
        Slot slot(*world.ring, world.claim(w), &world.memory, idle);
        EXPECT_NE(slot.memory(layout_of("x"), 70'000), nullptr);
        slot.finish_inline(ResultKind::kRows, 0, {});
      });
    }
    for (int i = 0; i < 20; ++i) serve_space_requests(*world.ring, world.arena);
    for (auto& thread : threads) thread.join();
    std::set<uint64_t> offsets;
    for (uint64_t seq = 0; seq < 4; ++seq) offsets.insert(world.ring->entry_at(seq).block_offset);
    EXPECT_EQ(offsets.size(), 4u);
    EXPECT_EQ(world.arena.stats().live_blocks, 4u);
  }
}

// ---- taken away ---------------------------------------------------------------------------------

TEST(Slot, what_was_taken_away_is_not_written_any_more) {
  OneSlotRing world(1);
  world.post();
  TicketRing::Claim claim = world.claim(0);
  Slot slot(*world.ring, claim, &world.memory, idle);
  EXPECT_TRUE(slot.progress({3}));
  EXPECT_NE(slot.memory(layout_of("x"), kRowsBytes), nullptr);
  { EXPECT_TRUE(static_cast<bool>(Slot::Write(slot))); }
  ASSERT_TRUE(RingSupervisor(*world.ring).take_over(claim));
  RingSupervisor(*world.ring).reopen_task(claim, 0);
  { EXPECT_FALSE(static_cast<bool>(Slot::Write(slot))); }
  EXPECT_FALSE(slot.progress({5}));
  EXPECT_EQ(slot.in_hand(), Call{3});
  EXPECT_EQ(code_of([&] { slot.memory(layout_of("x"), kRowsBytes); }), Code::kClosed);
  EXPECT_FALSE(slot.withdrawn());
  EXPECT_FALSE(slot.finish_inline(ResultKind::kRows, 0, {}));
  EXPECT_TRUE(slot.withdrawn());
  EXPECT_EQ(code_of([&] { slot.layout(); }), Code::kClosed);
  EXPECT_EQ(world.ring->place(0).inside.load(), 0u);
}

// As the supervisor does for a thread: it changes the word, then waits for Looks that had begun.
TEST(Slot, a_clock_is_not_moved_by_the_one_before) {
  constexpr uint64_t kMine = 12345;
  OneSlotRing world(1);
  for (int round = 0; round < 1000; ++round) {
    const uint64_t seq = world.post();
    const TicketRing::Claim old = world.claim(0);
    std::atomic<bool> begun{false};
    std::thread late([&] {
      Slot slot(*world.ring, old, &world.memory, idle);
      while (world.ring->holds(old)) {
        slot.restart_clock();
        begun.store(true);
      }
    });
    while (!begun.load()) std::this_thread::yield();
    ASSERT_TRUE(RingSupervisor(*world.ring).take_over(old));
    while (world.ring->place(0).inside.load() != 0) std::this_thread::yield();
    RingSupervisor(*world.ring).reopen_task(old, 0);
    const TicketRing::Claim next = world.claim(1);
    next.task->claimed_ns.store(kMine);
    late.join();
    ASSERT_EQ(next.task->claimed_ns.load(), kMine) << round;
    Slot(*world.ring, next, &world.memory, idle).finish_inline(ResultKind::kNone, 0, {});
    RingConsumer(*world.ring).close_layout(seq);
    RingConsumer(*world.ring).clear(seq);
    RingConsumer(*world.ring).advance_head(seq + 1);
  }
}

TEST(Slot, a_place_in_use_by_another_batch_is_not_touched) {
  OneSlotRing world(1);
  world.post();
  TicketRing::Claim old = world.claim(0);
  Slot zombie(*world.ring, old, &world.memory, idle);
  ASSERT_TRUE(RingSupervisor(*world.ring).take_over(old));
  world.ring->finish(old);
  for (uint64_t seq = 0; seq < 4; ++seq) {  // one lap
    if (seq > 0) {
      Slot slot(*world.ring, world.claim(1), &world.memory, idle);
      slot.finish_inline(ResultKind::kNone, 0, {});
    }
    RingConsumer(*world.ring).close_layout(seq);
    RingConsumer(*world.ring).clear(seq);
    RingConsumer(*world.ring).advance_head(seq + 1);
    world.post();
  }
  EXPECT_EQ(world.ring->entry_at(4).seq, 4u);
  EXPECT_EQ(code_of([&] { zombie.memory(layout_of("old"), kRowsBytes); }), Code::kClosed);
  EXPECT_EQ(BatchEntry::layout_state_of(world.ring->entry_at(4).layout_state.load()),
            LayoutState::kNone);
  EXPECT_FALSE(zombie.finish_inline(ResultKind::kRows, 0, {}));
}

// ---- serving ------------------------------------------------------------------------------------

class Throws : public TicketRunner {
 public:
  void run(const Ticket& ticket, Slot& slot) override {
    switch (ticket.begin) {
      case 0:
        throw Error(Code::kOutOfMemory, "here", "nothing left");
      case 1:
        throw std::bad_alloc();
      case 2:
        throw Error(Code::kDataLoss, "read", "train.bin is cut off");
      case 3:
        throw std::logic_error("never");
      default:
        slot.finish_inline(ResultKind::kPacket, 5, {});
    }
  }
};

TEST(Serve, what_is_thrown_becomes_the_result) {
  OneSlotRing world(5);
  uint64_t seq = world.post();
  Throws throws;
  serve_entry(*world.ring, 0, seq, throws, &world.memory);
  ASSERT_TRUE(world.ring->ready(seq));
  Task& first = world.ring->task_at(seq, 0);
  EXPECT_EQ(first.kind, ResultKind::kNoSpace);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(first.packet), first.length), "here: nothing left");
  EXPECT_EQ(world.ring->task_at(seq, 1).kind, ResultKind::kNoSpace);
  Task& damaged = world.ring->task_at(seq, 2);
  EXPECT_EQ(damaged.kind, ResultKind::kBroken);
  EXPECT_EQ(error_in(damaged).code(), Code::kDataLoss);
  EXPECT_STREQ(error_in(damaged).what(), "read: train.bin is cut off");
  EXPECT_EQ(error_in(world.ring->task_at(seq, 3)).code(), Code::kInternal);
  EXPECT_EQ(world.ring->task_at(seq, 4).kind, ResultKind::kPacket);
  EXPECT_EQ(world.ring->place(0).counters.tickets.get(), 5u);
}

class TakenFrom : public TicketRunner {
 public:
  explicit TakenFrom(TicketRing& ring) : ring_(ring) {}
  void run(const Ticket&, Slot& slot) override {
    ++runs;
    ASSERT_TRUE(RingSupervisor(ring_).take_over(slot.claim()));
    RingSupervisor(ring_).reopen_task(slot.claim(), 0);
    slot.finish_inline(ResultKind::kPacket, 0, {});
  }
  int runs = 0;

 private:
  TicketRing& ring_;
};

TEST(Serve, a_worker_whose_ticket_was_taken_away_ends) {
  OneSlotRing world(1);
  world.post();
  world.post();
  TakenFrom worker(*world.ring);
  serve(*world.ring, 0, worker, &world.memory);
  EXPECT_EQ(worker.runs, 1);
}

TEST(Ticket, granules_share_a_batchs_rows) {
  auto ring = TicketRing::create({2, 4, 1}, false);
  for (uint32_t rows = 0; rows < 40; ++rows) {
    for (uint32_t granules = 1; granules <= 4; ++granules) {
      BatchEntry& entry = ring->entry_at(0);
      entry.rows = rows;
      entry.granules = granules;
      uint32_t next = 0;
      for (uint32_t g = 0; g < granules; ++g) {
        Ticket ticket = ticket_of(ring->claim_in(0, g, 0));
        EXPECT_EQ(ticket.rows, rows);
        EXPECT_EQ(ticket.begin, std::min(next, rows));
        next = ticket.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

}  // namespace
}  // namespace penstock
