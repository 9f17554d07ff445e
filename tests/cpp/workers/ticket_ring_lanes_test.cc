// A ring with several lanes, which the same workers serve.
#include <thread>

#include "penstock/memory/allocator.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/ticket_runner.h"
#include "ticket_rings.h"

namespace penstock {
namespace {

using testing::post;
using testing::state;

std::unique_ptr<TicketRing> ring_of_lanes(uint32_t workers, bool shared = false) {
  TicketRing::Shape shape;
  shape.entries = 4;
  shape.granules = 2;
  shape.workers = workers;
  shape.inner = {2, 8};
  return TicketRing::create(shape, shared);
}

TEST(TicketRingLanes, each_has_a_ring_of_its_own) {
  auto ring = ring_of_lanes(2);
  ASSERT_EQ(ring->lanes(), 3u);
  EXPECT_EQ(ring->lane(0).entries(), 4u);
  EXPECT_EQ(ring->lane(1).entries(), 2u);
  EXPECT_EQ(ring->lane(2).entries(), 8u);
  EXPECT_EQ(ring->lane(1).granules(), 1u);
  post(ring->lane(1));
  EXPECT_EQ(ring->posted(), 0u);
  EXPECT_EQ(ring->lane(1).posted(), 1u);
  TicketRing::Claim claim;
  EXPECT_FALSE(RingWorker(ring->lane(2), 0).claim(claim));
  ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
  EXPECT_EQ(claim.lane, 1u);
  EXPECT_EQ(ticket_of(claim).lane, 1u);
  auto [lane, seq, granule] = ring->address_of(ring->number_of(claim));
  EXPECT_EQ(&lane, &ring->lane(1));
  EXPECT_EQ(seq, claim.seq);
  EXPECT_EQ(granule, 0u);
  testing::finish(ring->lane(1), claim);
  EXPECT_TRUE(ring->lane(1).ready(0));
}

TEST(TicketRingLanes, another_process_finds_them) {
  auto ring = ring_of_lanes(2, true);
  auto opened = TicketRing::open(ring->fd());
  ASSERT_EQ(opened->lanes(), 3u);
  EXPECT_EQ(opened->lane(2).entries(), 8u);
  post(ring->lane(2));
  TicketRing::Claim claim;
  ASSERT_TRUE(RingWorker(opened->lane(2), 1).claim(claim));
  EXPECT_EQ(state(ring->lane(2), 0), TaskState::kClaimed);
  testing::finish(opened->lane(2), claim);
  EXPECT_TRUE(ring->lane(2).ready(0));
  ring->close();
  EXPECT_TRUE(opened->lane(1).closed());
}

TEST(TicketRingLanes, the_death_of_a_worker_opens_its_tickets_in_all) {
  auto ring = ring_of_lanes(2);
  for (uint32_t l = 0; l < 3; ++l) {
    post(ring->lane(l));
    TicketRing::Claim claim;
    ASSERT_TRUE(RingWorker(ring->lane(l), 1).claim(claim));
  }
  for (uint32_t l = 0; l < 3; ++l) {
    EXPECT_EQ(RingSupervisor(ring->lane(l)).reopen(1, 3, testing::drop), 1u);
    EXPECT_EQ(state(ring->lane(l), 0), TaskState::kOpen);
  }
  // Another worker, which has already checked all lanes, finds them.
  for (uint32_t l = 0; l < 3; ++l) {
    TicketRing::Claim claim;
    EXPECT_TRUE(RingWorker(ring->lane(l), 0).claim(claim)) << l;
  }
}

// Finishes tickets with their lane's number.
struct Numbering : TicketRunner {
  void run(const Ticket& ticket, Slot& slot) override {
    slot.finish_inline(ResultKind::kPacket, ticket.lane, {});
  }
};

TEST(TicketRingLanes, a_worker_that_sleeps_is_woken_by_any) {
  auto ring = ring_of_lanes(1);
  Numbering worker;
  std::thread serving([&] { serve(*ring, 0, worker, nullptr); });
  for (uint32_t l : {1u, 0u, 2u, 1u}) {
    while (!ring->sleepers().asleep(0)) std::this_thread::yield();
    TicketRing& lane = ring->lane(l);
    const uint64_t seq = post(lane);
    while (!lane.ready(seq)) RingConsumer(lane).wait(seq, -1);
    EXPECT_EQ(lane.task_at(seq, 0).bytes, l);
    RingConsumer(lane).clear(seq);
    RingConsumer(lane).advance_head(seq + 1);
  }
  ring->close();
  serving.join();
}

// Deciding whether one worker is faster than all would need figures of all lanes together.
TEST(TicketRingLanes, tickets_of_several_lanes_are_for_all_workers) {
  auto ring = ring_of_lanes(2);
  ring->sleepers().set_exclusive(true);
  for (uint32_t worker : {0, 1}) {
    ring->place(worker).ticket_ns.store(1'000);
    ring->place(worker).serving.store(1);
  }
  for (uint32_t l = 0; l < 3; ++l) {
    const uint64_t seq = post(ring->lane(l));
    RingConsumer(ring->lane(l)).wait(seq, 1);
    EXPECT_FALSE(ring->lane(l).sleepers().one_suffices()) << l;
  }
  EXPECT_FALSE(RingWorker(*ring, 1).spare());
}

TEST(TicketRingLanes, closing_wakes_every_consumer) {
  auto ring = ring_of_lanes(1);
  std::vector<std::thread> consumers;
  for (uint32_t l = 0; l < 3; ++l) {
    const uint64_t seq = post(ring->lane(l));
    consumers.emplace_back([&ring, l, seq] {
      while (!ring->closed()) RingConsumer(ring->lane(l)).wait(seq, -1);
    });
  }
  ring->close();
  for (std::thread& consumer : consumers) consumer.join();
}

TEST(TicketRingLanes, an_entry_waits_for_space_in_the_first_lane_only) {
  auto ring = ring_of_lanes(1);
  Allocator::Options few;
  few.max_bytes = 1 << 20;
  Allocator arena(Region::create(Region::Kind::kPrivate), few);
  auto proposed = [](TicketRing& lane, uint64_t seq) {
    BatchEntry& of = lane.entry_at(seq);
    of.needed_bytes = 1 << 30;
    of.layout_state = lane.layout_word(seq, LayoutState::kProposed);
  };
  for (uint32_t l : {0u, 1u}) {
    TicketRing& lane = ring->lane(l);
    post(lane);
    proposed(lane, post(lane));
    EXPECT_EQ(serve_space_requests(lane, arena), l == 1);
    EXPECT_EQ(BatchEntry::layout_state_of(lane.entry_at(1).layout_state),
              l == 0 ? LayoutState::kProposed : LayoutState::kNoSpace);
  }
}

}  // namespace
}  // namespace penstock
