// The ring: parked workers do nothing, and nothing waits for them.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/ticket_ring.h"
#include "tests/cpp/workers/ticket_rings.h"

namespace penstock {
namespace {

using testing::drop;
using testing::finish;
using testing::post;
using testing::state;

// Serves until the ring closes; counts its tickets.
class Server {
 public:
  Server(TicketRing& ring, uint32_t worker)
      : ring_(ring), worker_(worker), thread_([this] { run(); }) {}
  ~Server() { thread_.join(); }
  uint64_t done() const { return done_.load(); }

 private:
  void run() {
    RingWorker end(ring_, worker_);
    TicketRing::Claim claim;
    while (!ring_.closed()) {
      if (end.claim(claim)) {
        ring_.begin_result(claim);
        done_.fetch_add(1);  // before the consumer can read it
        ring_.finish(claim);
      } else {
        end.wait();
      }
    }
  }
  TicketRing& ring_;
  uint32_t worker_;
  std::atomic<uint64_t> done_{0};
  std::thread thread_;
};

void take(TicketRing& ring, uint64_t seq) {
  RingConsumer(ring).wake_workers(true);
  while (!ring.ready(seq)) RingConsumer(ring).wait(seq, -1);
  RingConsumer(ring).clear(seq);
  RingConsumer(ring).advance_head(seq + 1);
}

TEST(TicketRingParking, a_parked_worker_claims_nothing_and_finishes_what_it_has) {
  auto ring = TicketRing::create({8, 1, 3}, false);
  TicketRing::Claim held, claim;
  const uint64_t first = post(*ring);
  ASSERT_TRUE(RingWorker(*ring, 2).claim(held));
  ring->sleepers().set_active(2);
  EXPECT_EQ(ring->sleepers().active(), 2u);
  const uint64_t second = post(*ring);
  EXPECT_FALSE(RingWorker(*ring, 2).claim(claim));
  EXPECT_EQ(state(*ring, second), TaskState::kOpen);
  EXPECT_TRUE(ring->holds(held));
  finish(*ring, held);
  EXPECT_TRUE(ring->ready(first));
  EXPECT_TRUE(RingWorker(*ring, 1).claim(claim));
  finish(*ring, claim);
  ring->sleepers().set_active(3);
  post(*ring);
  EXPECT_TRUE(RingWorker(*ring, 2).claim(claim));
}

TEST(TicketRingParking, one_worker_at_least_is_active_and_no_more_than_there_are) {
  auto ring = TicketRing::create({8, 1, 3}, false);
  EXPECT_EQ(ring->sleepers().active(), 3u);
  ring->sleepers().set_active(0);
  EXPECT_EQ(ring->sleepers().active(), 1u);
  ring->sleepers().set_active(7);
  EXPECT_EQ(ring->sleepers().active(), 3u);
}

TEST(TicketRingParking, a_ticket_that_a_parked_worker_dies_with_is_done_by_an_active_one) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  TicketRing::Claim claim;
  const uint64_t seq = post(*ring);
  ASSERT_TRUE(RingWorker(*ring, 1).claim(claim));
  ring->sleepers().set_active(1);
  Server server(*ring, 0);
  EXPECT_EQ(RingSupervisor(*ring).reopen(1, 3, drop), 1u);
  take(*ring, seq);
  EXPECT_EQ(server.done(), 1u);
  ring->close();
}

TEST(TicketRingParking, parked_workers_rest_and_come_back) {
  auto ring = TicketRing::create({64, 1, 3}, false);
  Server a(*ring, 0), b(*ring, 1), c(*ring, 2);
  for (int round = 0; round < 200; ++round) {
    ring->sleepers().set_active(round % 3 + 1);
    const uint64_t before = b.done() + c.done();
    const uint64_t seq = post(*ring);
    take(*ring, seq);
    if (round % 3 == 0 && round > 0) {
      // A worker that had read the old number may have claimed a ticket; later none does.
      const uint64_t late = b.done() + c.done();
      EXPECT_LE(late, before + 1);
    }
  }
  ring->sleepers().set_active(1);
  uint64_t seq = post(*ring);
  take(*ring, seq);
  const uint64_t rest = b.done() + c.done();
  for (int i = 0; i < 100; ++i) {
    seq = post(*ring);
    take(*ring, seq);
  }
  EXPECT_LE(b.done() + c.done(), rest + 2);
  ring->close();
}

// Waits for every ticket without a timeout: after a lost wake-up the test hangs.
TEST(TicketRingParking, no_wake_up_is_lost_while_workers_are_parked_and_called_back) {
  auto ring = TicketRing::create({8, 2, 4}, false);
  Server a(*ring, 0), b(*ring, 1), c(*ring, 2), d(*ring, 3);
  uint64_t draw = 7;
  for (int i = 0; i < 20'000; ++i) {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    if ((draw >> 60) == 0) ring->sleepers().set_active(static_cast<uint32_t>(draw >> 33) % 4 + 1);
    const uint64_t seq = post(*ring, 2);
    if ((draw >> 58 & 1) != 0)
      ring->sleepers().set_active(static_cast<uint32_t>(draw >> 35) % 4 + 1);
    take(*ring, seq);
  }
  EXPECT_EQ(a.done() + b.done() + c.done() + d.done(), 40'000u);
  ring->close();  // the parked ones end, too
}

TEST(TicketRingParking, a_wake_up_that_reaches_a_worker_which_was_parked_meanwhile_is_passed_on) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  Server server(*ring, 0);
  std::atomic<bool> parked{false};
  std::thread late([&] {
    RingWorker end(*ring, 1);
    TicketRing::Claim claim;
    end.wait();
    while (!parked) std::this_thread::yield();
    while (!ring->closed()) {
      EXPECT_FALSE(end.claim(claim));
      end.wait();
    }
  });
  while (!ring->sleepers().asleep(0) || !ring->sleepers().asleep(1)) std::this_thread::yield();
  const uint64_t seq = post(*ring);
  EXPECT_TRUE(ring->sleepers().wake(1));  // the only wake-up for this ticket
  ring->sleepers().set_active(1);
  parked = true;
  while (!ring->ready(seq)) std::this_thread::yield();  // nobody else wakes worker 0
  ring->close();
  late.join();
}

TEST(TicketRingParking, a_parked_worker_hears_that_something_was_sent_to_it) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  ring->sleepers().set_active(1);
  std::atomic<int> woken{0};
  std::thread parked([&] {
    RingWorker end(*ring, 1);
    while (!ring->closed()) {
      end.wait();
      ++woken;
    }
  });
  // As Supervisor::send_update does, until it was there to hear it.
  while (woken.load() == 0) {
    ring->place(1).event.fetch_add(1);
    os::futex_wake(ring->place(1).event, 1, false);
    std::this_thread::yield();
  }
  ring->close();
  parked.join();
}

}  // namespace
}  // namespace penstock
