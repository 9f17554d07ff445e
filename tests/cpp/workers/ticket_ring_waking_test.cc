// The ring: no worker sleeps while there is work, and none is woken for too little work.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/ticket_ring.h"
#include "tests/cpp/threads.h"
#include "tests/cpp/workers/ticket_rings.h"

namespace penstock {
namespace {

using testing::drop;
using testing::finish;
using testing::post;

class Sleeper {
 public:
  Sleeper(TicketRing& ring, uint32_t worker)
      : ring_(ring), worker_(worker), thread_([this] { run(); }) {}
  ~Sleeper() { thread_.join(); }
  // Not only until its bit is set: afterwards the worker checks for work once more, and would do it
  // without a wake-up.
  void until_asleep() {
    while (!ring_.sleepers().asleep(worker_) || !testing::sleeps(id_)) std::this_thread::yield();
  }
  uint32_t events() { return ring_.place(worker_).event.load(); }

 private:
  void run() {
    id_ = testing::this_thread();
    RingWorker end(ring_, worker_);
    TicketRing::Claim claim;
    while (!ring_.closed()) {
      if (end.claim(claim)) {
        ring_.begin_result(claim);
        ring_.finish(claim);
      } else {
        end.wait();
      }
    }
  }
  TicketRing& ring_;
  uint32_t worker_;
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

TEST(TicketRing, a_few_small_tickets_wake_nobody_until_the_consumer_waits) {
  auto ring = TicketRing::create({64, 1, 1}, false);
  RingConsumer consumer(*ring);
  ring->place(0).ticket_ns.store(1000);
  Sleeper sleeper(*ring, 0);
  sleeper.until_asleep();
  for (int i = 0; i < 15; ++i) {
    post(*ring);
    consumer.wake_workers(false);
  }
  EXPECT_EQ(sleeper.events(), 0u);
  consumer.wait(0, -1);
  EXPECT_EQ(sleeper.events(), 1u);
  EXPECT_TRUE(ring->ready(0));
  ring->close();
}

TEST(TicketRing, a_quarter_of_the_ring_wakes_somebody) {
  auto ring = TicketRing::create({64, 1, 1}, false);
  ring->place(0).ticket_ns.store(1000);
  Sleeper sleeper(*ring, 0);
  sleeper.until_asleep();
  for (int i = 0; i < 16; ++i) post(*ring);
  RingConsumer(*ring).wake_workers(false);
  EXPECT_EQ(sleeper.events(), 1u);
  ring->close();
}

// Such a consumer would sleep until several batches are ready, but there is only one.
TEST(TicketRing, a_consumer_that_waits_again_at_once_gets_a_batch_that_none_follows) {
  auto ring = TicketRing::create({64, 1, 1}, false);
  ring->place(0).ticket_ns.store(1000);
  for (int i = 0; i < 64; ++i) post(*ring);
  std::atomic<uint64_t> taken{0};
  std::thread worker([&] {
    for (uint64_t seq = 0; seq < 40; ++seq) {
      TicketRing::Claim claim;
      while (taken < seq) std::this_thread::yield();
      ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
      finish(*ring, claim);
    }
  });
  for (uint64_t seq = 0; seq < 40; ++seq) {
    while (!ring->ready(seq)) RingConsumer(*ring).wait(seq, -1);
    taken = seq + 1;
  }
  worker.join();
}

TEST(TicketRing, a_large_ticket_wakes_somebody_at_once) {
  auto ring = TicketRing::create({64, 1, 1}, false);
  ring->place(0).ticket_ns.store(1'000'000);
  Sleeper sleeper(*ring, 0);
  sleeper.until_asleep();
  post(*ring);
  RingConsumer(*ring).wake_workers(false);
  EXPECT_EQ(sleeper.events(), 1u);
  ring->close();
}

TEST(TicketRing, one_of_those_who_share_a_lock_is_woken_for_tiny_tickets) {
  for (uint64_t ticket_ns : {1'000, 1'000'000}) {
    auto ring = TicketRing::create({64, 1, 2}, false);
    ring->sleepers().set_exclusive(true);
    ring->place(0).ticket_ns.store(ticket_ns);
    Sleeper a(*ring, 0), b(*ring, 1);
    for (Sleeper* sleeper : {&a, &b}) sleeper->until_asleep();
    for (int i = 0; i < 60; ++i) post(*ring);
    RingConsumer(*ring).wake_workers(true);
    EXPECT_EQ(a.events() + b.events(), ticket_ns == 1'000 ? 1u : 2u);
    ring->close();
  }
}

TEST(TicketRing, tiny_tickets_under_one_lock_are_left_to_the_first_that_is_awake) {
  auto ring = TicketRing::create({64, 1, 3}, false);
  RingConsumer consumer(*ring);
  ring->place(0).ticket_ns.store(1'000);
  post(*ring);
  TicketRing::Claim claim;
  ASSERT_TRUE(RingWorker(*ring, 1).claim(claim));
  for (uint32_t worker : {0, 1, 2}) ring->place(worker).serving.store(1);
  consumer.wait(0, 1);
  EXPECT_FALSE(RingWorker(*ring, 2).spare()) << "no lock";
  ring->sleepers().set_exclusive(true);
  EXPECT_FALSE(RingWorker(*ring, 2).spare()) << "not tried yet";
  consumer.wait(0, 1);
  EXPECT_FALSE(RingWorker(*ring, 0).spare());
  EXPECT_TRUE(RingWorker(*ring, 1).spare());
  EXPECT_TRUE(RingWorker(*ring, 2).spare());
  {
    Sleeper first(*ring, 0);
    first.until_asleep();
    EXPECT_FALSE(RingWorker(*ring, 1).spare());
    EXPECT_TRUE(RingWorker(*ring, 2).spare());
    ring->place(1).serving.store(0);
    EXPECT_FALSE(RingWorker(*ring, 2).spare()) << "nobody is there";
    ring->close();
  }
  auto owned = TicketRing::create({64, 1, 3}, false);
  owned->place(0).ticket_ns.store(1'000);
  owned->sleepers().set_exclusive(true);
  owned->place(0).serving.store(1);
  post(*owned, 1, 2);
  RingConsumer(*owned).wait(0, 1);
  EXPECT_FALSE(RingWorker(*owned, 2).spare()) << "its own";
}

TEST(TicketRing, a_consumer_that_waits_in_vain_gets_all_workers_for_a_while) {
  auto ring = TicketRing::create({64, 1, 2}, false);
  RingConsumer consumer(*ring);
  ring->place(0).ticket_ns.store(1'000);
  ring->sleepers().set_exclusive(true);
  ring->place(0).serving.store(1);
  post(*ring);
  consumer.wait(0, 50'000'000);
  EXPECT_FALSE(RingWorker(*ring, 1).spare());
  while (!RingWorker(*ring, 1).spare()) consumer.wait(0, 1);
}

TEST(TicketRing, the_others_are_woken_once_a_tiny_ticket_turns_out_to_be_long) {
  auto ring = TicketRing::create({64, 1, 3}, false);
  ring->sleepers().set_exclusive(true);
  for (uint32_t worker = 0; worker < 3; ++worker) ring->place(worker).ticket_ns.store(1'000);
  Sleeper a(*ring, 0), b(*ring, 1);
  for (Sleeper* sleeper : {&a, &b}) sleeper->until_asleep();
  uint64_t first = post(*ring);
  TicketRing::Claim slow;
  ASSERT_TRUE(RingWorker(*ring, 2).claim(slow));
  for (int i = 0; i < 50; ++i) post(*ring);
  RingConsumer(*ring).wait(first, 200'000'000);
  EXPECT_GE(a.events(), 1u);
  EXPECT_GE(b.events(), 1u);
  ring->close();
}

TEST(TicketRing, what_is_opened_again_wakes_somebody) {
  auto ring = TicketRing::create({4, 1, 2}, false);
  post(*ring);
  TicketRing::Claim claim;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(claim));
  Sleeper sleeper(*ring, 1);
  sleeper.until_asleep();
  RingSupervisor(*ring).reopen(0, 3, drop);
  while (!ring->ready(0)) std::this_thread::yield();
  ring->close();
}

TEST(TicketRing, an_owned_entry_wakes_its_owner) {
  auto ring = TicketRing::create({8, 1, 3}, false);
  RingConsumer consumer(*ring);
  Sleeper a(*ring, 0), b(*ring, 1), c(*ring, 2);
  for (uint32_t worker : {2, 0, 1, 1, 0, 2}) {
    uint64_t seq = post(*ring, 1, worker);
    consumer.wait(seq, -1);
    EXPECT_TRUE(ring->ready(seq));
    EXPECT_EQ(ring->task_at(seq, 0).worker, worker);
    consumer.clear(seq);
    consumer.advance_head(seq + 1);
  }
  ring->close();
}

TEST(TicketRing, closing_wakes_everybody) {
  auto ring = TicketRing::create({4, 1, 3}, false);
  Sleeper a(*ring, 0), b(*ring, 1), c(*ring, 2);
  post(*ring, 1, 200);  // for no worker
  std::thread closer([&] {
    a.until_asleep();
    b.until_asleep();
    c.until_asleep();
    ring->close();
  });
  while (!ring->closed()) RingConsumer(*ring).wait(0, -1);
  closer.join();
}

// A batch of a later epoch cannot be taken before those of this epoch, so it ends no wait.
TEST(TicketRing, waiting_for_any_batch_is_for_one_of_the_same_epoch) {
  auto ring = TicketRing::create({8, 1, 2}, false);
  RingConsumer consumer(*ring);
  uint64_t last = post(*ring, 1, kAnyWorker, 0);
  uint64_t next = post(*ring, 1, kAnyWorker, 1);
  TicketRing::Claim slow, fast;
  ASSERT_TRUE(RingWorker(*ring, 0).claim(slow));
  ASSERT_TRUE(RingWorker(*ring, 0).claim(fast));
  EXPECT_EQ(fast.seq, next);
  finish(*ring, fast);
  uint64_t begin = now_ns();
  consumer.wait(TicketRing::kAnySeq, 20'000'000);
  EXPECT_GE(now_ns() - begin, 20'000'000u);
  finish(*ring, slow);
  consumer.wait(TicketRing::kAnySeq, -1);
  EXPECT_TRUE(ring->ready(last));
}

}  // namespace
}  // namespace penstock
