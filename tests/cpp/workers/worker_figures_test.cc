// A worker's figures, read while it works.
#include <gtest/gtest.h>

#include <thread>

#include "penstock/base/clock.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ticket_ring.h"
#include "penstock/workers/ticket_runner.h"
#include "tests/cpp/workers/ticket_rings.h"

namespace penstock {
namespace {

class Nothing : public TicketRunner {
 public:
  void run(const Ticket&, Slot& slot) override { slot.finish_inline(ResultKind::kNone, 0, {}); }
};

TEST(WorkerFigures, a_wait_counts_while_it_lasts_up_to_the_last_batch) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  WorkerPlace& place = ring->place(1);
  place.counters.wait_ticket_ns.add(5);
  place.waiting_since.store(100);
  EXPECT_EQ(ring->figures(1).wait_ticket_ns, 5u);
  ring->consumer().last_ns.set(400);
  EXPECT_EQ(ring->figures(1).wait_ticket_ns, 305u);
  EXPECT_EQ(ring->figures(0).wait_ticket_ns, 0u);
  place.waiting_since.store(500);
  EXPECT_EQ(ring->figures(1).wait_ticket_ns, 5u);
  place.waiting_since.store(WorkerPlace::kCounting);  // and it died then
  EXPECT_EQ(ring->figures(1).wait_ticket_ns, 5u);
}

TEST(WorkerFigures, what_was_seen_of_a_wait_stays_when_its_worker_dies) {
  auto ring = TicketRing::create({8, 1, 1}, false);
  ring->place(0).waiting_since.store(now_ns());
  ring->consumer().last_ns.set(now_ns());
  const uint64_t waited = ring->figures(0).wait_ticket_ns;
  EXPECT_GT(waited, 0u);
  ring->close();
  Nothing work;
  serve(*ring, 0, work, nullptr);  // its successor
  EXPECT_GE(ring->figures(0).wait_ticket_ns, waited);
}

TEST(WorkerFigures, who_is_parked_waits_for_no_ticket) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  Nothing work;
  std::thread worker([&] { serve(*ring, 1, work, nullptr); });
  const auto counted = [&] { return ring->place(1).waiting_since.load() != 0; };
  while (!counted()) std::this_thread::yield();
  ring->consumer().last_ns.set(now_ns());
  const uint64_t seen = ring->figures(1).wait_ticket_ns;
  ring->sleepers().set_active(1);
  while (counted()) std::this_thread::yield();
  const uint64_t waited = ring->figures(1).wait_ticket_ns, parked = now_ns();
  EXPECT_GE(waited, seen);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ring->consumer().last_ns.set(now_ns());
  EXPECT_EQ(ring->figures(1).wait_ticket_ns, waited);
  ring->sleepers().set_active(2);
  while (!counted()) std::this_thread::yield();
  ring->consumer().last_ns.set(now_ns());
  ring->close();
  worker.join();
  EXPECT_LE(ring->figures(1).wait_ticket_ns, waited + now_ns() - parked - 20'000'000);
}

TEST(WorkerFigures, after_the_last_batch_nobody_waits) {
  auto ring = TicketRing::create({8, 1, 1}, false);
  Nothing work;
  std::thread worker([&] { serve(*ring, 0, work, nullptr); });
  while (ring->place(0).waiting_since.load() == 0) std::this_thread::yield();
  ring->consumer().last_ns.set(now_ns());
  const uint64_t waited = ring->figures(0).wait_ticket_ns;
  EXPECT_GT(waited, 0u);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ring->figures(0).wait_ticket_ns, waited);
  ring->close();
  worker.join();
  EXPECT_EQ(ring->figures(0).wait_ticket_ns, waited);
}

TEST(WorkerFigures, a_wait_is_counted_once) {
  auto ring = TicketRing::create({8, 1, 1}, false);
  RingConsumer consumer(*ring);
  Nothing work;
  const uint64_t begun = now_ns();
  std::thread worker([&] { serve(*ring, 0, work, nullptr); });
  uint64_t before = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t seq = testing::post(*ring);
    consumer.wake_workers(true);
    while (!ring->ready(seq)) consumer.wait(seq, -1);
    consumer.clear(seq);
    consumer.advance_head(seq + 1);
    ring->consumer().last_ns.set(now_ns());
    for (int look = 0; look < 20; ++look) {
      const uint64_t waited = ring->figures(0).wait_ticket_ns;
      EXPECT_GE(waited, before);
      EXPECT_LE(waited, now_ns() - begun);
      before = waited;
    }
  }
  ring->close();
  worker.join();
}

}  // namespace
}  // namespace penstock
