// The board: workers that are parked do nothing, and nothing waits for them.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "penstock/workers/board.h"
#include "tests/cpp/workers/boards.h"

namespace penstock {
namespace {

using testing::drop;
using testing::finish;
using testing::post;
using testing::state;

// Serves until the board closes; counts what it did.
class Server {
 public:
  Server(Board& board, uint32_t worker)
      : board_(board), worker_(worker), thread_([this] { run(); }) {}
  ~Server() { thread_.join(); }
  uint64_t done() const { return done_.load(); }

 private:
  void run() {
    uint64_t cursor = 0;
    Board::Claim claim;
    while (!board_.closed()) {
      if (board_.claim(worker_, cursor, claim)) {
        board_.begin_result(claim);
        done_.fetch_add(1);  // before whoever takes the ticket may look
        board_.finish(claim);
      } else {
        board_.wait_for_work(worker_, cursor);
      }
    }
  }
  Board& board_;
  uint32_t worker_;
  std::atomic<uint64_t> done_{0};
  std::thread thread_;
};

void take(Board& board, uint64_t seq) {
  board.wake_workers(true);
  while (!board.ready(seq)) board.consumer_wait(seq, -1);
  board.clear(seq);
  board.advance_head(seq + 1);
}

TEST(BoardParking, a_parked_worker_claims_nothing_and_finishes_what_it_has) {
  auto board = Board::create({8, 1, 3}, false);
  uint64_t cursor = 0;
  Board::Claim held, claim;
  const uint64_t first = post(*board);
  ASSERT_TRUE(board->claim(2, cursor, held));
  board->set_active(2);
  EXPECT_EQ(board->active(), 2u);
  const uint64_t second = post(*board);
  EXPECT_FALSE(board->claim(2, cursor, claim));
  EXPECT_EQ(state(*board, second), UnitState::kOpen);
  EXPECT_TRUE(board->holds(held));
  finish(*board, held);
  EXPECT_TRUE(board->ready(first));
  EXPECT_TRUE(board->claim(1, cursor = 0, claim));
  finish(*board, claim);
  board->set_active(3);
  post(*board);
  EXPECT_TRUE(board->claim(2, cursor = 0, claim));
}

TEST(BoardParking, one_worker_at_least_is_active_and_no_more_than_there_are) {
  auto board = Board::create({8, 1, 3}, false);
  EXPECT_EQ(board->active(), 3u);
  board->set_active(0);
  EXPECT_EQ(board->active(), 1u);
  board->set_active(7);
  EXPECT_EQ(board->active(), 3u);
}

TEST(BoardParking, a_ticket_that_a_parked_worker_dies_with_is_done_by_an_active_one) {
  auto board = Board::create({8, 1, 2}, false);
  uint64_t cursor = 0;
  Board::Claim claim;
  const uint64_t seq = post(*board);
  ASSERT_TRUE(board->claim(1, cursor, claim));
  board->set_active(1);
  Server server(*board, 0);
  EXPECT_EQ(board->reopen(1, 3, drop, nullptr), 1u);
  take(*board, seq);
  EXPECT_EQ(server.done(), 1u);
  board->close();
}

TEST(BoardParking, parked_workers_rest_and_come_back) {
  auto board = Board::create({64, 1, 3}, false);
  Server a(*board, 0), b(*board, 1), c(*board, 2);
  for (int round = 0; round < 200; ++round) {
    board->set_active(round % 3 + 1);
    const uint64_t before = b.done() + c.done();
    const uint64_t seq = post(*board);
    take(*board, seq);
    if (round % 3 == 0 && round > 0) {
      // Whoever had looked at the old number may have claimed it; afterwards nobody does.
      const uint64_t late = b.done() + c.done();
      EXPECT_LE(late, before + 1);
    }
  }
  board->set_active(1);
  uint64_t seq = post(*board);
  take(*board, seq);
  const uint64_t rest = b.done() + c.done();
  for (int i = 0; i < 100; ++i) {
    seq = post(*board);
    take(*board, seq);
  }
  EXPECT_LE(b.done() + c.done(), rest + 2);
  board->close();
}

// Every ticket is waited for without a timeout: a wake-up that is lost is a test that hangs.
TEST(BoardParking, no_wake_up_is_lost_while_workers_are_parked_and_called_back) {
  auto board = Board::create({8, 2, 4}, false);
  Server a(*board, 0), b(*board, 1), c(*board, 2), d(*board, 3);
  uint64_t draw = 7;
  for (int i = 0; i < 20'000; ++i) {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    if ((draw >> 60) == 0) board->set_active(static_cast<uint32_t>(draw >> 33) % 4 + 1);
    const uint64_t seq = post(*board, 2);
    if ((draw >> 58 & 1) != 0) board->set_active(static_cast<uint32_t>(draw >> 35) % 4 + 1);
    take(*board, seq);
  }
  EXPECT_EQ(a.done() + b.done() + c.done() + d.done(), 40'000u);
  board->close();  // the parked ones end, too
}

TEST(BoardParking, a_wake_up_that_reaches_a_worker_which_was_parked_meanwhile_is_passed_on) {
  auto board = Board::create({8, 1, 2}, false);
  Server server(*board, 0);
  std::atomic<bool> parked{false};
  std::thread late([&] {
    uint64_t cursor = 0;
    Board::Claim claim;
    board->wait_for_work(1, cursor);
    while (!parked) std::this_thread::yield();
    while (!board->closed()) {
      EXPECT_FALSE(board->claim(1, cursor, claim));
      board->wait_for_work(1, cursor);
    }
  });
  while (!board->asleep(0) || !board->asleep(1)) std::this_thread::yield();
  board->wake_first(1);
  const uint64_t seq = post(*board);
  board->wake_workers(true);  // one, for one ticket: worker 1
  board->set_active(1);
  parked = true;
  while (!board->ready(seq)) std::this_thread::yield();  // nobody else wakes worker 0
  board->close();
  late.join();
}

TEST(BoardParking, a_parked_worker_hears_that_something_was_sent_to_it) {
  auto board = Board::create({8, 1, 2}, false);
  board->set_active(1);
  std::atomic<int> woken{0};
  std::thread parked([&] {
    uint64_t cursor = 0;
    while (!board->closed()) {
      board->wait_for_work(1, cursor);
      ++woken;
    }
  });
  // As Supervisor::send_update does, until it was there to hear it.
  while (woken.load() == 0) {
    board->place(1).event.fetch_add(1);
    os::futex_wake(board->place(1).event, 1, false);
    std::this_thread::yield();
  }
  board->close();
  parked.join();
}

}  // namespace
}  // namespace penstock
