// The board: who may move a unit from which state to which.
#include "penstock/workers/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "tests/cpp/workers/boards.h"

namespace penstock {
namespace {

using testing::drop;
using testing::finish;
using testing::post;
using testing::state;

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

TEST(Board, a_poisoned_row_takes_no_other_along_and_is_forgotten_with_its_post) {
  for (uint32_t rows : {1u, 64u, 65u, 300u, 65536u}) {
    for (uint32_t granules : {1u, 3u}) {
      auto board =
          Board::create({.posts = 2, .granules = granules, .workers = 1, .rows = rows}, true);
      auto theirs = Board::open(board->fd());  // as a worker process has it
      uint64_t cursor = 0;
      for (int round = 0; round < 5; ++round) {  // round the ring
        uint64_t seq = post(*board, granules);
        Board::Claim claim;
        ASSERT_TRUE(theirs->claim(0, cursor, claim));
        ASSERT_EQ(claim.granule, 0u);
        Board::Claim ours = board->claim_in(seq, 0, claim.word);
        EXPECT_FALSE(theirs->any_poisoned(claim));
        const std::set<uint32_t> bad = {0, rows / 2, rows - 1};
        for (uint32_t row : bad) {
          EXPECT_FALSE(theirs->ending(claim, {row}));
          EXPECT_TRUE(
              board->poison(ours, {row}, row == 0 ? ResultKind::kLost : ResultKind::kTimeout));
          EXPECT_FALSE(board->poison(ours, {row}, ResultKind::kError));  // was already
        }
        EXPECT_TRUE(theirs->any_poisoned(claim));
        for (uint32_t row : bad) {
          const auto ending = theirs->ending(claim, {row});
          ASSERT_TRUE(ending);
          EXPECT_EQ(ending->kind, row == 0 ? ResultKind::kLost : ResultKind::kTimeout) << row;
          EXPECT_EQ(ending->worker, claim.worker);
          EXPECT_FALSE(theirs->ending(claim, {row, 7})) << "another function of that row";
        }
        for (uint32_t row = 0; row < rows; ++row) {
          EXPECT_EQ(theirs->ending(claim, {row}).has_value(), bad.contains(row)) << row;
        }
        finish(*theirs, claim);
        for (uint32_t g = 1; g < granules; ++g) {
          ASSERT_TRUE(theirs->claim(0, cursor, claim));
          EXPECT_FALSE(theirs->any_poisoned(claim) || theirs->ending(claim, {rows - 1}));
          finish(*theirs, claim);
        }
        board->clear(seq);
        board->advance_head(seq + 1);
      }
    }
  }
}

TEST(Board, what_is_poisoned_beyond_all_rows_is_refused) {
  auto board = Board::create({.posts = 2, .granules = 1, .workers = 1, .rows = 1}, true);
  post(*board, 1);
  uint64_t cursor = 0;
  Board::Claim claim;
  ASSERT_TRUE(board->claim(0, cursor, claim));
  uint32_t poisoned = 0;
  while (poisoned < 1000 && board->poison(claim, {0, poisoned + 1}, ResultKind::kLost)) ++poisoned;
  EXPECT_EQ(poisoned, kMaxGranuleRows);
  for (uint32_t call = 0; call < 200; ++call) {
    EXPECT_EQ(board->ending(claim, {0, call}).has_value(), call >= 1 && call <= poisoned) << call;
  }
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

// ---- stress -------------------------------------------------------------------------------------

struct Load {
  uint32_t posts, granules, workers, window;
  bool any;             // take batches as they come
  bool varied = false;  // posts of one granule to all of them
  uint32_t granules_of(uint64_t seq) const {
    return varied ? 1 + static_cast<uint32_t>(seq * 0x9E3779B97F4A7C15 >> 40) % granules : granules;
  }
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
      post(*board, load.granules_of(board->posted()));
    }
    board->wake_workers(false);
    uint64_t head = board->head();
    board->consumer_wait(load.any ? Board::kAnySeq : head, -1);
    for (uint64_t seq = head; seq < board->posted() && (load.any || seq == head); ++seq) {
      if (!board->ready(seq)) continue;
      for (uint32_t g = 0; g < load.granules_of(seq); ++g) {
        EXPECT_EQ(board->unit_at(seq, g).bytes, seq);
      }
      board->clear(seq);
      taken.insert(seq);
    }
    while (taken.contains(board->head())) board->advance_head(board->head() + 1);
  }
  board->close();
  for (auto& thread : threads) thread.join();
  for (uint64_t seq = 0; seq < count; ++seq) {
    for (uint32_t g = 0; g < load.granules; ++g) {
      ASSERT_EQ(done[seq * load.granules + g].load(), g < load.granules_of(seq) ? 1u : 0u);
    }
  }
}

TEST(BoardStress, every_unit_is_done_once_and_no_wake_up_is_lost) {
  run_load({2, 1, 3, 1, false}, 4000);  // ping-pong
  run_load({4, 1, 3, 2, true}, 4000);
  run_load({16, 1, 2, 12, false}, 20000);
  run_load({16, 5, 4, 12, false}, 3000);
  run_load({16, 3, 4, 16, true}, 3000);
  run_load({256, 1, 4, 200, false}, 40000);
  run_load({2, 4, 3, 1, false, true}, 4000);
  run_load({16, 6, 4, 12, false, true}, 4000);
  run_load({16, 6, 4, 16, true, true}, 4000);
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
