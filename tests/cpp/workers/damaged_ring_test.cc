// A worker process that crashes may write anything into the ring. The consumer's process stays
// inside its memory and goes on.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/slot.h"
#include "penstock/workers/ticket_failures.h"
#include "penstock/workers/ticket_runner.h"
#include "ticket_rings.h"

namespace penstock {
namespace {

using testing::post;

// The consumer's end, and the same ring as a worker process has it.
struct Damaged {
  std::unique_ptr<TicketRing> ring = TicketRing::create({4, 2, 2}, true);
  std::unique_ptr<TicketRing> theirs = TicketRing::open(ring->fd());
  RingConsumer consumer{*ring};
};

TEST(DamagedRing, the_consumer_keeps_its_counts_and_writes_them_again_after_a_death) {
  Damaged world;
  post(*world.ring);
  world.theirs->header().head.store(UINT64_MAX / 3);
  world.theirs->header().posted.store(UINT64_MAX / 2);
  world.theirs->header().hint.store(UINT64_MAX / 2);
  EXPECT_EQ(world.ring->head(), 0u);
  EXPECT_EQ(world.ring->posted(), 1u);
  EXPECT_TRUE(world.consumer.can_post());
  RingSupervisor(*world.ring).reopen(0, 3, testing::drop);
  EXPECT_EQ(world.theirs->head(), 0u);
  EXPECT_EQ(world.theirs->posted(), 1u);
  TicketRing::Claim claim;
  EXPECT_TRUE(RingWorker(*world.theirs, 1).claim(claim));
}

TEST(DamagedRing, a_worker_looks_at_no_more_than_a_ring_of_entries) {
  Damaged world;
  post(*world.ring);
  world.theirs->header().posted.store(UINT64_MAX / 4);
  TicketRing::Claim claim;
  RingWorker worker(*world.theirs, 1);
  EXPECT_TRUE(worker.claim(claim));
  EXPECT_FALSE(worker.claim(claim));
}

TEST(DamagedRing, an_entry_is_as_it_was_posted) {
  Damaged world;
  const uint64_t seq = post(*world.ring, 2, 1, 5);
  BatchEntry& theirs = world.theirs->entry_at(seq);
  theirs.epoch = theirs.rows = 77;
  theirs.granules = UINT32_MAX;
  theirs.owner = UINT32_MAX - 1;
  theirs.input_offset = UINT64_MAX;
  theirs.layout_length = UINT32_MAX;
  EXPECT_EQ(world.ring->granules_at(seq), 2u);
  EXPECT_LE(world.theirs->granules_at(seq), 2u);
  world.ring->sleepers().announce(1);
  world.consumer.wake_workers(true);
  EXPECT_FALSE(world.ring->sleepers().asleep(1)) << "the owner that the ticket was posted for";
  const BatchEntry& entry = world.consumer.own_entry(seq);
  EXPECT_EQ(entry.epoch, 5u);
  EXPECT_EQ(entry.rows, 2u);
  EXPECT_EQ(entry.granules, 2u);
  EXPECT_EQ(entry.owner, 1u);
  EXPECT_EQ(entry.input_offset, 0u);
  EXPECT_LE(entry.layout_length, kLayoutBytes);
}

TEST(DamagedRing, a_ticket_without_granules_has_rows_of_its_batch) {
  Damaged world;
  const uint64_t seq = post(*world.ring);
  world.theirs->entry_at(seq).granules = 0;
  const Ticket ticket = ticket_of(world.ring->claim_in(seq, 1, 0));
  EXPECT_LE(ticket.begin, ticket.end);
  EXPECT_LE(ticket.end, ticket.rows);
}

TEST(DamagedRing, a_claim_of_a_worker_that_does_not_exist_is_no_timeout) {
  Damaged world;
  const uint64_t seq = post(*world.ring);
  std::set<uint32_t> killed;
  TicketFailures failures(*world.ring, {.timeout_ns = 1}, [&](uint32_t worker, bool) {
    killed.insert(worker);
    return true;
  });
  Task& task = world.theirs->task_at(seq, 0);
  task.claimed_ns.store(1);
  task.word.store(Task::word_of(seq, 200, 0, 0, TaskState::kClaimed));
  EXPECT_FALSE(failures.check());
  EXPECT_TRUE(killed.empty());
}

TEST(DamagedRing, the_number_of_poisoned_calls_and_of_active_workers_have_bounds) {
  Damaged world;
  const uint64_t seq = post(*world.ring);
  Task& task = world.theirs->task_at(seq, 0);
  task.poisoned.store(UINT32_MAX);
  const auto claim = world.ring->claim_in(seq, 0, task.word.load());
  EXPECT_FALSE(world.ring->ending(claim, Call{3, 4}));
  EXPECT_FALSE(RingSupervisor(*world.ring).poison(claim, Call{3, 4}, ResultKind::kLost));
  auto* header =
      reinterpret_cast<RingHeader*>(reinterpret_cast<std::byte*>(&world.theirs->place(0)) -
                                    sizeof(RingHeader) / 4096 * 4096 - 4096);
  ASSERT_EQ(header->active.load(), 2u);
  header->active.store(UINT32_MAX);
  EXPECT_EQ(world.ring->sleepers().active(), 2u);
}

TEST(DamagedRing, a_result_is_no_pointer_and_its_text_ends_with_the_task) {
  Damaged world;
  Task& task = world.theirs->task_at(0, 0);
  task.object = 0x7000'1234'5678;
  EXPECT_EQ(take_spill(world.ring->task_at(0, 0)), nullptr);
  write_spill(task, ResultKind::kPacket, 1, std::make_unique<Spill>(Spill{nullptr, 42}));
  const std::unique_ptr<Spill> spill = take_spill(task);
  ASSERT_NE(spill, nullptr);
  EXPECT_EQ(spill->size, 42u);
  EXPECT_EQ(take_spill(task), nullptr) << "once";
  task.length = UINT32_MAX;
  EXPECT_EQ(text_in(task).size(), Slot::kInline);
  task.packet[1] = std::byte{255};
  EXPECT_LE(std::string(error_in(task).what()).size(), 2 * Slot::kInline);
  task.length = 1;
  EXPECT_EQ(error_in(task).code(), Code::kDataLoss);
}

TEST(DamagedRing, a_batch_is_closed_although_its_word_names_a_server) {
  Damaged world;
  const uint64_t seq = post(*world.ring);
  world.theirs->entry_at(seq).layout_state =
      world.ring->layout_word(seq, LayoutState::kProposing, BatchEntry::kServer);
  world.consumer.close_layout(seq);  // returns
  EXPECT_EQ(BatchEntry::layout_state_of(world.ring->entry_at(seq).layout_state),
            LayoutState::kClosed);
}

TEST(DamagedRing, a_batch_outside_of_the_arena_is_not_written) {
  Damaged world;
  Allocator arena(Region::create(Region::Kind::kShared, size_t{4} << 20));
  LocalMemory memory(arena);
  void* block = arena.allocate(100);
  const uint64_t offset = arena.region()->offset_of(block);
  EXPECT_TRUE(memory.holds(offset, 100));
  EXPECT_FALSE(memory.holds(offset, 1 << 20));
  EXPECT_FALSE(memory.holds(offset + 64, 1));
  EXPECT_FALSE(memory.holds(UINT64_MAX - 4096, 1));
}

}  // namespace
}  // namespace penstock
