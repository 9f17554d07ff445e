// Processes on one ring, killed at any time: no task is lost, and none has a wrong result.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <random>
#include <vector>

#include "../memory/child.h"
#include "penstock/base/clock.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {
namespace {

constexpr uint32_t kWorkers = 3, kGranules = 2;

// The expected result of a task.
uint64_t value_of(uint64_t seq, uint32_t granule) {
  return (seq * 7 + granule) * 0x9e3779b97f4a7c15;
}

bool serve(int fd, uint32_t worker) {
  auto ring = TicketRing::open(fd);
  RingWorker end(*ring, worker);
  TicketRing::Claim claim;
  while (!ring->closed()) {
    if (!end.claim(claim)) {
      end.wait();
      continue;
    }
    uint64_t until = now_ns() + claim.seq % 5 * 3000;
    while (now_ns() < until) {
    }
    if (!ring->begin_result(claim)) return false;
    uint64_t value = value_of(claim.seq, claim.granule);
    for (size_t at = 0; at < sizeof(claim.task->packet); at += 8) {
      std::memcpy(claim.task->packet + at, &value, 8);
    }
    claim.task->kind = ResultKind::kPacket;
    claim.task->length = sizeof(claim.task->packet);
    ring->finish(claim);
  }
  return true;
}

class Workers {
 public:
  explicit Workers(TicketRing& ring) : ring_(ring) {
    for (uint32_t w = 0; w < kWorkers; ++w) pids_.push_back(start(w));
  }
  ~Workers() {
    ring_.close();
    for (pid_t pid : pids_) EXPECT_EQ(testing::status_of(pid), 0);
  }
  void kill_and_replace(uint32_t worker) {
    kill(pids_[worker], SIGKILL);
    testing::status_of(pids_[worker]);
    RingSupervisor(ring_).reopen(worker, 1000, [](const TicketRing::Claim&) {});
    pids_[worker] = start(worker);
  }

 private:
  pid_t start(uint32_t worker) {
    return testing::start_child([&] { return serve(ring_.fd(), worker); });
  }
  TicketRing& ring_;
  std::vector<pid_t> pids_;
};

void post_until(TicketRing& ring, uint64_t count) {
  while (ring.posted() < count && RingConsumer(ring).can_post()) {
    BatchEntry& next = RingConsumer(ring).next_entry();
    next.epoch = 0;
    next.rows = next.granules = kGranules;
    next.owner = kAnyWorker;
    RingConsumer(ring).publish(next);
  }
}

void take_ready(TicketRing& ring) {
  while (ring.head() < ring.posted() && ring.ready(ring.head())) {
    uint64_t seq = ring.head();
    for (uint32_t g = 0; g < kGranules; ++g) {
      Task& task = ring.task_at(seq, g);
      uint64_t expected = value_of(seq, g);
      ASSERT_EQ(task.kind, ResultKind::kPacket);
      for (size_t at = 0; at < sizeof(task.packet); at += 8) {
        ASSERT_EQ(std::memcmp(task.packet + at, &expected, 8), 0) << seq;
      }
    }
    RingConsumer(ring).clear(seq);
    RingConsumer(ring).advance_head(seq + 1);
  }
}

TEST(TicketRingProcesses, killed_workers_lose_nothing) {
  auto ring = TicketRing::create({16, kGranules, kWorkers}, true);
  Workers workers(*ring);
  std::mt19937 random(5);
#ifdef PENSTOCK_SANITIZED
  constexpr int kKills = 60;
#else
  constexpr int kKills = 250;
#endif
  // At least so many, and further ones that are done meanwhile.
  constexpr uint64_t kMin = 3000;
  for (int kills = 0; ring->head() < kMin || kills < kKills;) {
    post_until(*ring, UINT64_MAX);
    if (kills < kKills) {
      uint64_t until = now_ns() + random() % 400'000;
      while (now_ns() < until) take_ready(*ring);
      workers.kill_and_replace(random() % kWorkers);
      ++kills;
    } else {
      RingConsumer(*ring).wait(ring->head(), -1);
    }
    take_ready(*ring);
  }
  // Tickets in flight are finished, too, without further calls.
  while (ring->head() < ring->posted()) {
    RingConsumer(*ring).wait(ring->head(), -1);
    take_ready(*ring);
  }
}

TEST(TicketRingProcesses, all_workers_at_once_may_die_again_and_again) {
  auto ring = TicketRing::create({16, kGranules, kWorkers}, true);
  Workers workers(*ring);
  for (int round = 0; round < 10; ++round) {
    post_until(*ring, ring->head() + 40);
    for (uint32_t w = 0; w < kWorkers; ++w) workers.kill_and_replace(w);
    uint64_t end = ring->posted();
    while (ring->head() < end) {
      RingConsumer(*ring).wait(ring->head(), -1);
      take_ready(*ring);
    }
  }
}

}  // namespace
}  // namespace penstock
