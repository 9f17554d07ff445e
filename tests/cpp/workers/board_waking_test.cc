// The board: nobody sleeps through work, and nobody is woken for too little of it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/workers/board.h"
#include "tests/cpp/threads.h"
#include "tests/cpp/workers/boards.h"

namespace penstock {
namespace {

using testing::drop;
using testing::finish;
using testing::post;

class Sleeper {
 public:
  Sleeper(Board& board, uint32_t worker)
      : board_(board), worker_(worker), thread_([this] { run(); }) {}
  ~Sleeper() { thread_.join(); }
  // Not only with its bit set: it looks for work once more after that, and would do it without
  // having been woken.
  void until_asleep() {
    while (!board_.asleep(worker_) || !testing::sleeps(id_)) std::this_thread::yield();
  }
  uint32_t events() { return board_.place(worker_).event.load(); }

 private:
  void run() {
    id_ = testing::this_thread();
    uint64_t cursor = 0;
    Board::Claim claim;
    while (!board_.closed()) {
      if (board_.claim(worker_, cursor, claim)) {
        board_.begin_result(claim);
        board_.finish(claim);
      } else {
        board_.wait_for_work(worker_, cursor);
      }
    }
  }
  Board& board_;
  uint32_t worker_;
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

TEST(Board, a_few_small_tickets_wake_nobody_until_the_consumer_waits) {
  auto board = Board::create({64, 1, 1}, false);
  board->place(0).ticket_ns.store(1000);
  Sleeper sleeper(*board, 0);
  sleeper.until_asleep();
  for (int i = 0; i < 15; ++i) {
    post(*board);
    board->wake_workers(false);
  }
  EXPECT_EQ(sleeper.events(), 0u);
  board->consumer_wait(0, -1);
  EXPECT_EQ(sleeper.events(), 1u);
  EXPECT_TRUE(board->ready(0));
  board->close();
}

TEST(Board, a_quarter_of_the_ring_wakes_somebody) {
  auto board = Board::create({64, 1, 1}, false);
  board->place(0).ticket_ns.store(1000);
  Sleeper sleeper(*board, 0);
  sleeper.until_asleep();
  for (int i = 0; i < 16; ++i) post(*board);
  board->wake_workers(false);
  EXPECT_EQ(sleeper.events(), 1u);
  board->close();
}

// Such a consumer would sleep until several are there, but nobody makes more than one.
TEST(Board, a_consumer_that_waits_again_at_once_gets_a_batch_that_none_follows) {
  auto board = Board::create({64, 1, 1}, false);
  board->place(0).ticket_ns.store(1000);
  for (int i = 0; i < 64; ++i) post(*board);
  std::atomic<uint64_t> taken{0};
  std::thread worker([&] {
    uint64_t cursor = 0;
    for (uint64_t seq = 0; seq < 40; ++seq) {
      Board::Claim claim;
      while (taken < seq) std::this_thread::yield();
      ASSERT_TRUE(board->claim(0, cursor, claim));
      finish(*board, claim);
    }
  });
  for (uint64_t seq = 0; seq < 40; ++seq) {
    while (!board->ready(seq)) board->consumer_wait(seq, -1);
    taken = seq + 1;
  }
  worker.join();
}

TEST(Board, a_large_ticket_wakes_somebody_at_once) {
  auto board = Board::create({64, 1, 1}, false);
  board->place(0).ticket_ns.store(1'000'000);
  Sleeper sleeper(*board, 0);
  sleeper.until_asleep();
  post(*board);
  board->wake_workers(false);
  EXPECT_EQ(sleeper.events(), 1u);
  board->close();
}

TEST(Board, the_one_whose_turn_it_is_is_woken) {
  auto board = Board::create({64, 1, 3}, false);
  board->place(0).ticket_ns.store(1'000'000);
  Sleeper a(*board, 0), b(*board, 1), c(*board, 2);
  for (Sleeper* sleeper : {&a, &b, &c}) sleeper->until_asleep();
  board->wake_first(2);
  post(*board);
  board->wake_workers(false);
  EXPECT_EQ(c.events(), 1u);
  EXPECT_EQ(a.events() + b.events(), 0u);
  board->close();
}

TEST(Board, one_of_those_who_share_a_lock_is_woken_for_tiny_tickets) {
  for (uint64_t ticket_ns : {1'000, 1'000'000}) {
    auto board = Board::create({64, 1, 2}, false);
    board->set_exclusive(true);
    board->place(0).ticket_ns.store(ticket_ns);
    Sleeper a(*board, 0), b(*board, 1);
    for (Sleeper* sleeper : {&a, &b}) sleeper->until_asleep();
    for (int i = 0; i < 60; ++i) post(*board);
    board->wake_workers(true);
    EXPECT_EQ(a.events() + b.events(), ticket_ns == 1'000 ? 1u : 2u);
    board->close();
  }
}

TEST(Board, tiny_tickets_under_one_lock_are_left_to_the_first_that_is_awake) {
  auto board = Board::create({64, 1, 3}, false);
  board->place(0).ticket_ns.store(1'000);
  post(*board);
  uint64_t cursor = 0;
  Board::Claim claim;
  ASSERT_TRUE(board->claim(1, cursor, claim));
  for (uint32_t worker : {0, 1, 2}) board->place(worker).serving.store(1);
  board->consumer_wait(0, 1);
  EXPECT_FALSE(board->spare(2)) << "no lock";
  board->set_exclusive(true);
  EXPECT_FALSE(board->spare(2)) << "not tried yet";
  board->consumer_wait(0, 1);
  EXPECT_FALSE(board->spare(0));
  EXPECT_TRUE(board->spare(1));
  EXPECT_TRUE(board->spare(2));
  {
    Sleeper first(*board, 0);
    first.until_asleep();
    EXPECT_FALSE(board->spare(1));
    EXPECT_TRUE(board->spare(2));
    board->place(1).serving.store(0);
    EXPECT_FALSE(board->spare(2)) << "nobody is there";
    board->close();
  }
  auto owned = Board::create({64, 1, 3}, false);
  owned->place(0).ticket_ns.store(1'000);
  owned->set_exclusive(true);
  owned->place(0).serving.store(1);
  post(*owned, 1, 2);
  owned->consumer_wait(0, 1);
  EXPECT_FALSE(owned->spare(2)) << "its own";
}

TEST(Board, a_consumer_that_waits_in_vain_gets_all_workers_for_a_while) {
  auto board = Board::create({64, 1, 2}, false);
  board->place(0).ticket_ns.store(1'000);
  board->set_exclusive(true);
  board->place(0).serving.store(1);
  post(*board);
  board->consumer_wait(0, 50'000'000);
  EXPECT_FALSE(board->spare(1));
  while (!board->spare(1)) board->consumer_wait(0, 1);
}

TEST(Board, the_others_are_woken_once_a_tiny_ticket_turns_out_to_be_long) {
  auto board = Board::create({64, 1, 3}, false);
  board->set_exclusive(true);
  for (uint32_t worker = 0; worker < 3; ++worker) board->place(worker).ticket_ns.store(1'000);
  Sleeper a(*board, 0), b(*board, 1);
  for (Sleeper* sleeper : {&a, &b}) sleeper->until_asleep();
  uint64_t first = post(*board), cursor = 0;
  Board::Claim slow;
  ASSERT_TRUE(board->claim(2, cursor, slow));
  for (int i = 0; i < 50; ++i) post(*board);
  board->consumer_wait(first, 200'000'000);
  EXPECT_GE(a.events(), 1u);
  EXPECT_GE(b.events(), 1u);
  board->close();
}

TEST(Board, what_is_opened_again_wakes_somebody) {
  auto board = Board::create({4, 1, 2}, false);
  post(*board);
  uint64_t cursor = 0;
  Board::Claim claim;
  ASSERT_TRUE(board->claim(0, cursor, claim));
  Sleeper sleeper(*board, 1);
  sleeper.until_asleep();
  board->reopen(0, 3, drop, nullptr);
  while (!board->ready(0)) std::this_thread::yield();
  board->close();
}

TEST(Board, an_owned_post_wakes_its_owner) {
  auto board = Board::create({8, 1, 3}, false);
  Sleeper a(*board, 0), b(*board, 1), c(*board, 2);
  for (uint32_t worker : {2, 0, 1, 1, 0, 2}) {
    uint64_t seq = post(*board, 1, worker);
    board->consumer_wait(seq, -1);
    EXPECT_TRUE(board->ready(seq));
    EXPECT_EQ(board->unit_at(seq, 0).worker, worker);
    board->clear(seq);
    board->advance_head(seq + 1);
  }
  board->close();
}

TEST(Board, closing_wakes_everybody) {
  auto board = Board::create({4, 1, 3}, false);
  Sleeper a(*board, 0), b(*board, 1), c(*board, 2);
  post(*board, 1, 200);  // for nobody
  std::thread closer([&] {
    a.until_asleep();
    b.until_asleep();
    c.until_asleep();
    board->close();
  });
  while (!board->closed()) board->consumer_wait(0, -1);
  closer.join();
}

// A later epoch's batch is not to be had before this one's: it is no reason to stay awake.
TEST(Board, waiting_for_any_batch_is_for_one_of_the_same_epoch) {
  auto board = Board::create({8, 1, 2}, false);
  uint64_t last = post(*board, 1, kAnyWorker, 0);
  uint64_t next = post(*board, 1, kAnyWorker, 1);
  uint64_t cursor = 0;
  Board::Claim slow, fast;
  ASSERT_TRUE(board->claim(0, cursor, slow));
  ASSERT_TRUE(board->claim(0, cursor, fast));
  EXPECT_EQ(fast.seq, next);
  finish(*board, fast);
  uint64_t begin = now_ns();
  board->consumer_wait(Board::kAnySeq, 20'000'000);
  EXPECT_GE(now_ns() - begin, 20'000'000u);
  finish(*board, slow);
  board->consumer_wait(Board::kAnySeq, -1);
  EXPECT_TRUE(board->ready(last));
}

}  // namespace
}  // namespace penstock
