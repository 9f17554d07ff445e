// The board: who may move a unit from which state to which, and that nobody sleeps through work.
#include "penstock/workers/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

uint64_t post(Board& board, uint32_t granules = 1, uint32_t owner = kAnyWorker,
              uint64_t epoch = 0) {
  Post& next = board.next_post();
  next.epoch = epoch;
  next.rows = granules;
  next.granules = granules;
  next.owner = owner;
  uint64_t seq = next.seq;
  board.publish(next);
  return seq;
}

UnitState state(Board& board, uint64_t seq, uint32_t granule = 0) {
  return Board::state_of(board.unit_at(seq, granule).word.load());
}

void finish(Board& board, const Board::Claim& claim) {
  ASSERT_TRUE(board.begin_result(claim));
  board.finish(claim);
}

void drop(void*, const Board::Claim&) {}

// ---- states -------------------------------------------------------------------------------------

TEST(Board, a_unit_goes_from_idle_to_idle) {
  auto board = Board::create({4, 1, 2}, false);
  EXPECT_TRUE(board->can_post());
  uint64_t seq = post(*board);
  EXPECT_EQ(state(*board, seq), UnitState::kOpen);
  EXPECT_FALSE(board->ready(seq));

  uint64_t cursor = 0;
  Board::Claim claim, none;
  ASSERT_TRUE(board->claim(1, cursor, claim));
  EXPECT_EQ(state(*board, seq), UnitState::kClaimed);
  EXPECT_EQ(claim.worker, 1u);
  EXPECT_TRUE(board->holds(claim));
  uint64_t other = 0;
  EXPECT_FALSE(board->claim(0, other, none));

  EXPECT_TRUE(board->begin_result(claim));
  EXPECT_EQ(state(*board, seq), UnitState::kWriting);
  EXPECT_FALSE(board->begin_result(claim));
  board->finish(claim);
  EXPECT_EQ(state(*board, seq), UnitState::kDone);
  EXPECT_TRUE(board->ready(seq));
  EXPECT_EQ(board->unit_at(seq, 0).worker, 1u);

  board->clear(seq);
  EXPECT_TRUE(board->idle(seq));
  board->advance_head(seq + 1);
  EXPECT_EQ(board->head(), board->posted());
  EXPECT_EQ(board->place(1).tickets.load(), 1u);
}

TEST(Board, a_short_batch_is_ready_without_the_granules_that_it_has_not) {
  auto board = Board::create({4, 5, 1}, false);
  uint64_t seq = post(*board, 2);
  uint64_t cursor = 0;
  Board::Claim claim;
  for (uint32_t g = 0; g < 2; ++g) {
    EXPECT_FALSE(board->ready(seq));
    ASSERT_TRUE(board->claim(0, cursor, claim));
    EXPECT_EQ(claim.granule, g);
    finish(*board, claim);
  }
  EXPECT_TRUE(board->ready(seq));
  EXPECT_FALSE(board->claim(0, cursor, claim));
}

TEST(Board, a_full_ring_takes_no_more) {
  auto board = Board::create({4, 1, 1}, false);
  ASSERT_EQ(board->posts(), 4u);
  for (int i = 0; i < 4; ++i) post(*board);
  EXPECT_FALSE(board->can_post());
  uint64_t cursor = 0;
  Board::Claim claim;
  ASSERT_TRUE(board->claim(0, cursor, claim));
  finish(*board, claim);
  EXPECT_FALSE(board->can_post());
  board->clear(0);
  board->advance_head(1);
  EXPECT_TRUE(board->can_post());
}

TEST(Board, withdrawing_takes_back_what_is_open_and_leaves_what_is_claimed) {
  auto board = Board::create({4, 3, 1}, false);
  uint64_t seq = post(*board, 3);
  uint64_t cursor = 0;
  Board::Claim first, second;
  ASSERT_TRUE(board->claim(0, cursor, first));
  finish(*board, first);
  ASSERT_TRUE(board->claim(0, cursor, second));
  EXPECT_FALSE(board->withdraw(seq));
  EXPECT_EQ(state(*board, seq, 0), UnitState::kDone);
  EXPECT_EQ(state(*board, seq, 1), UnitState::kClaimed);
  EXPECT_EQ(state(*board, seq, 2), UnitState::kIdle);
  EXPECT_TRUE(board->holds(second));
  finish(*board, second);
  EXPECT_TRUE(board->withdraw(seq));
  EXPECT_FALSE(board->ready(seq));
}

TEST(Board, withdrawn_work_keeps_its_place_until_it_is_done) {
  auto board = Board::create({2, 1, 2}, false);
  uint64_t old = post(*board);
  uint64_t cursor = 0, other = 0;
  Board::Claim zombie, claim;
  ASSERT_TRUE(board->claim(0, cursor, zombie));
  EXPECT_FALSE(board->withdraw(old));
  board->advance_head(board->posted());
  uint64_t next = post(*board);
  ASSERT_TRUE(board->claim(1, other, claim));
  EXPECT_EQ(claim.seq, next);
  finish(*board, claim);
  board->clear(next);
  board->advance_head(next + 1);
  EXPECT_FALSE(board->can_post());  // the zombie's place comes next
  finish(*board, zombie);
  EXPECT_TRUE(board->withdraw(old));
  board->clear(old);
  EXPECT_TRUE(board->can_post());
}

TEST(Board, an_owned_post_is_for_its_owner_in_order) {
  auto board = Board::create({8, 1, 3}, false);
  for (uint32_t i = 0; i < 6; ++i) post(*board, 1, i % 2);
  Board::Claim claim;
  uint64_t cursors[3] = {};
  EXPECT_FALSE(board->claim(2, cursors[2], claim));
  for (uint64_t seq : {1, 3, 5}) {
    ASSERT_TRUE(board->claim(1, cursors[1], claim));
    EXPECT_EQ(claim.seq, seq);
  }
  EXPECT_FALSE(board->claim(1, cursors[1], claim));
  for (uint64_t seq : {0, 2, 4}) {
    ASSERT_TRUE(board->claim(0, cursors[0], claim));
    EXPECT_EQ(claim.seq, seq);
  }
}

TEST(Board, the_consumer_in_line_claims_one_posts_units) {
  auto board = Board::create({4, 2, 1}, false);
  post(*board, 2);
  uint64_t seq = post(*board, 2);
  Board::Claim claim;
  for (uint32_t g = 0; g < 2; ++g) {
    ASSERT_TRUE(board->claim_of(0, seq, claim));
    EXPECT_EQ(claim.seq, seq);
    EXPECT_EQ(claim.granule, g);
  }
  EXPECT_FALSE(board->claim_of(0, seq, claim));
}

// ---- death --------------------------------------------------------------------------------------

TEST(Board, what_a_dead_worker_had_is_open_again) {
  auto board = Board::create({8, 1, 2}, false);
  for (int i = 0; i < 3; ++i) post(*board);
  uint64_t cursor = 0, other = 0;
  Board::Claim claimed, writing, done, claim;
  ASSERT_TRUE(board->claim(0, cursor, claimed));
  ASSERT_TRUE(board->claim(0, cursor, writing));
  ASSERT_TRUE(board->claim(0, cursor, done));
  ASSERT_TRUE(board->begin_result(writing));
  finish(*board, done);
  EXPECT_EQ(board->reopen(0, 3, drop, nullptr), 2u);
  EXPECT_EQ(state(*board, 2), UnitState::kDone);
  for (uint64_t seq : {0, 1}) {
    ASSERT_TRUE(board->claim(1, other, claim));
    EXPECT_EQ(claim.seq, seq);
    EXPECT_EQ(claim.losses, 1u);
  }
  EXPECT_FALSE(board->claim(1, other, claim));
  EXPECT_EQ(board->reopen(0, 3, drop, nullptr), 0u);
}

TEST(Board, the_third_loss_is_the_callers) {
  auto board = Board::create({2, 1, 1}, false);
  post(*board);
  Board::Claim claim;
  std::vector<Board::Claim> given_up;
  auto give_up = [](void* of, const Board::Claim& lost) {
    static_cast<std::vector<Board::Claim>*>(of)->push_back(lost);
  };
  for (int death = 0; death < 3; ++death) {
    uint64_t cursor = 0;
    ASSERT_TRUE(board->claim(0, cursor, claim));
    EXPECT_EQ(board->reopen(0, 3, give_up, &given_up), 1u);
    EXPECT_EQ(given_up.size(), death == 2 ? 1u : 0u);
  }
  EXPECT_EQ(given_up[0].seq, 0u);
  EXPECT_EQ(given_up[0].losses, 2u);
  board->finish(given_up[0]);
  EXPECT_TRUE(board->ready(0));
}

TEST(Board, a_dead_workers_withdrawn_work_is_just_done) {
  auto board = Board::create({4, 1, 2}, false);
  uint64_t seq = post(*board);
  uint64_t cursor = 0;
  Board::Claim claim;
  ASSERT_TRUE(board->claim(0, cursor, claim));
  EXPECT_FALSE(board->withdraw(seq));
  board->advance_head(board->posted());
  EXPECT_EQ(board->reopen(0, 3, drop, nullptr), 0u);
  EXPECT_TRUE(board->withdraw(seq));
}

// The same worker's place may claim the same unit again after the first claim was taken away: the
// thread that made the first one must still see that it is not its own any more.
TEST(Board, a_claim_that_was_taken_away_never_comes_back) {
  auto board = Board::create({2, 1, 1}, false);
  post(*board);
  std::vector<Board::Claim> old;
  for (int i = 0; i < 300; ++i) {
    uint64_t cursor = 0;
    Board::Claim claim;
    ASSERT_TRUE(board->claim(0, cursor, claim));
    EXPECT_TRUE(board->holds(claim));
    for (size_t k = old.size() > 200 ? old.size() - 200 : 0; k < old.size(); ++k) {
      EXPECT_FALSE(board->holds(old[k]));
      EXPECT_FALSE(board->begin_result(old[k]));
    }
    ASSERT_TRUE(board->take_over(claim));
    EXPECT_FALSE(board->holds(claim));
    board->reopen_unit(claim, 0);
    old.push_back(claim);
  }
}

// ---- waking -------------------------------------------------------------------------------------

class Sleeper {
 public:
  Sleeper(Board& board, uint32_t worker)
      : board_(board), worker_(worker), thread_([this] { run(); }) {}
  ~Sleeper() { thread_.join(); }
  void until_asleep() {
    while (!board_.asleep(worker_)) std::this_thread::yield();
  }
  uint32_t events() { return board_.place(worker_).event.load(); }

 private:
  void run() {
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

// ---- stress -------------------------------------------------------------------------------------

struct Load {
  uint32_t posts, granules, workers, window;
  bool any;  // take batches as they come
};

// Every unit is done once, by somebody, and nobody sleeps for ever: all waits here are unbounded.
void run_load(const Load& load, uint64_t count) {
  auto board = Board::create({load.posts, load.granules, load.workers}, false);
  std::vector<std::atomic<uint32_t>> done(count * load.granules);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < load.workers; ++w) {
    threads.emplace_back([&, w] {
      uint64_t cursor = 0;
      Board::Claim claim;
      while (!board->closed()) {
        if (!board->claim(w, cursor, claim)) {
          board->wait_for_work(w, cursor);
          continue;
        }
        done[claim.seq * load.granules + claim.granule].fetch_add(1);
        claim.unit->bytes = claim.seq;
        if ((claim.seq + w) % 64 == 0) std::this_thread::yield();
        board->begin_result(claim);
        board->finish(claim);
      }
    });
  }
  std::set<uint64_t> taken;
  while (board->head() < count) {
    while (board->posted() < count && board->posted() - board->head() < load.window &&
           board->can_post()) {
      post(*board, load.granules);
    }
    board->wake_workers(false);
    uint64_t head = board->head();
    board->consumer_wait(load.any ? Board::kAnySeq : head, -1);
    for (uint64_t seq = head; seq < board->posted() && (load.any || seq == head); ++seq) {
      if (!board->ready(seq)) continue;
      for (uint32_t g = 0; g < load.granules; ++g) EXPECT_EQ(board->unit_at(seq, g).bytes, seq);
      board->clear(seq);
      taken.insert(seq);
    }
    while (taken.contains(board->head())) board->advance_head(board->head() + 1);
  }
  board->close();
  for (auto& thread : threads) thread.join();
  for (auto& times : done) ASSERT_EQ(times.load(), 1u);
}

TEST(BoardStress, every_unit_is_done_once_and_no_wake_up_is_lost) {
  run_load({2, 1, 3, 1, false}, 4000);  // ping-pong
  run_load({4, 1, 3, 2, true}, 4000);
  run_load({16, 1, 2, 12, false}, 20000);
  run_load({16, 5, 4, 12, false}, 3000);
  run_load({16, 3, 4, 16, true}, 3000);
  run_load({256, 1, 4, 200, false}, 40000);
}

// ---- sharing ------------------------------------------------------------------------------------

TEST(Board, it_is_opened_by_its_descriptor) {
  auto board = Board::create({5, 3, 2}, true);
  EXPECT_EQ(board->posts(), 8u);
  auto other = Board::open(board->fd());
  EXPECT_EQ(other->posts(), 8u);
  EXPECT_EQ(other->granules(), 3u);
  EXPECT_EQ(other->workers(), 2u);
  uint64_t seq = post(*board, 3);
  uint64_t cursor = 0;
  Board::Claim claim;
  while (other->claim(1, cursor, claim)) finish(*other, claim);
  EXPECT_TRUE(board->ready(seq));
  board->close();
  EXPECT_TRUE(other->closed());
}

TEST(Board, what_is_no_board_is_refused) {
  os::Fd file = os::memory_file("penstock-test");
  os::resize_file(file.get(), 1 << 20);
  EXPECT_THROW(Board::open(file.get()), Error);
  EXPECT_THROW(Board::open(-1), Error);
  EXPECT_THROW(Board::create({4, 1, kMaxWorkers + 1}, false), Error);
}

}  // namespace
}  // namespace penstock
