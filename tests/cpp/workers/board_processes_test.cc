// Processes on one board, killed at any instant: no unit is lost, none is done wrongly.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <random>
#include <vector>

#include "../memory/child.h"
#include "penstock/base/clock.h"
#include "penstock/workers/board.h"

namespace penstock {
namespace {

constexpr uint32_t kWorkers = 3, kGranules = 2;

// What a unit's result is: anybody can check it.
uint64_t value_of(uint64_t seq, uint32_t granule) {
  return (seq * 7 + granule) * 0x9e3779b97f4a7c15;
}

bool serve(int fd, uint32_t worker) {
  auto board = Board::open(fd);
  uint64_t cursor = 0;
  Board::Claim claim;
  while (!board->closed()) {
    if (!board->claim(worker, cursor, claim)) {
      board->wait_for_work(worker, cursor);
      continue;
    }
    uint64_t until = now_ns() + claim.seq % 5 * 3000;
    while (now_ns() < until) {
    }
    if (!board->begin_result(claim)) return false;
    uint64_t value = value_of(claim.seq, claim.granule);
    for (size_t at = 0; at < sizeof(claim.unit->packet); at += 8) {
      std::memcpy(claim.unit->packet + at, &value, 8);
    }
    claim.unit->kind = ResultKind::kPacket;
    claim.unit->length = sizeof(claim.unit->packet);
    board->finish(claim);
  }
  return true;
}

class Workers {
 public:
  explicit Workers(Board& board) : board_(board) {
    for (uint32_t w = 0; w < kWorkers; ++w) pids_.push_back(start(w));
  }
  ~Workers() {
    board_.close();
    for (pid_t pid : pids_) EXPECT_EQ(testing::status_of(pid), 0);
  }
  void kill_and_replace(uint32_t worker) {
    kill(pids_[worker], SIGKILL);
    testing::status_of(pids_[worker]);
    board_.reopen(
        worker, 1000, [](void*, const Board::Claim&) {}, nullptr);
    pids_[worker] = start(worker);
  }

 private:
  pid_t start(uint32_t worker) {
    return testing::start_child([&] { return serve(board_.fd(), worker); });
  }
  Board& board_;
  std::vector<pid_t> pids_;
};

void post_until(Board& board, uint64_t count) {
  while (board.posted() < count && board.can_post()) {
    Post& next = board.next_post();
    next.epoch = 0;
    next.rows = next.granules = kGranules;
    next.owner = kAnyWorker;
    board.publish(next);
  }
}

void take_ready(Board& board) {
  while (board.head() < board.posted() && board.ready(board.head())) {
    uint64_t seq = board.head();
    for (uint32_t g = 0; g < kGranules; ++g) {
      Unit& unit = board.unit_at(seq, g);
      uint64_t expected = value_of(seq, g);
      ASSERT_EQ(unit.kind, ResultKind::kPacket);
      for (size_t at = 0; at < sizeof(unit.packet); at += 8) {
        ASSERT_EQ(std::memcmp(unit.packet + at, &expected, 8), 0) << seq;
      }
    }
    board.clear(seq);
    board.advance_head(seq + 1);
  }
}

TEST(BoardProcesses, killed_workers_lose_nothing) {
  auto board = Board::create({16, kGranules, kWorkers}, true);
  Workers workers(*board);
  std::mt19937 random(5);
#ifdef PENSTOCK_SANITIZED
  constexpr int kKills = 60;
#else
  constexpr int kKills = 250;
#endif
  // At least so many, and as many more as are done meanwhile.
  constexpr uint64_t kLeast = 3000;
  for (int kills = 0; board->head() < kLeast || kills < kKills;) {
    post_until(*board, UINT64_MAX);
    if (kills < kKills) {
      uint64_t until = now_ns() + random() % 400'000;
      while (now_ns() < until) take_ready(*board);
      workers.kill_and_replace(random() % kWorkers);
      ++kills;
    } else {
      board->consumer_wait(board->head(), -1);
    }
    take_ready(*board);
  }
  // What is still in flight comes too, without anybody's help.
  while (board->head() < board->posted()) {
    board->consumer_wait(board->head(), -1);
    take_ready(*board);
  }
}

TEST(BoardProcesses, all_workers_at_once_may_die_again_and_again) {
  auto board = Board::create({16, kGranules, kWorkers}, true);
  Workers workers(*board);
  for (int round = 0; round < 10; ++round) {
    post_until(*board, board->head() + 40);
    for (uint32_t w = 0; w < kWorkers; ++w) workers.kill_and_replace(w);
    uint64_t end = board->posted();
    while (board->head() < end) {
      board->consumer_wait(board->head(), -1);
      take_ready(*board);
    }
  }
}

}  // namespace
}  // namespace penstock
