// A board of several rings that the same workers serve.
#include <thread>

#include "boards.h"
#include "penstock/memory/allocator.h"
#include "penstock/workers/worker.h"

namespace penstock {
namespace {

using testing::post;
using testing::state;

std::unique_ptr<Board> board_of_lanes(uint32_t workers, bool shared = false) {
  Board::Shape shape;
  shape.posts = 4;
  shape.granules = 2;
  shape.workers = workers;
  shape.inner = {2, 8};
  return Board::create(shape, shared);
}

TEST(BoardLanes, each_has_a_ring_of_its_own) {
  auto board = board_of_lanes(2);
  ASSERT_EQ(board->lanes(), 3u);
  EXPECT_EQ(board->lane(0).posts(), 4u);
  EXPECT_EQ(board->lane(1).posts(), 2u);
  EXPECT_EQ(board->lane(2).posts(), 8u);
  EXPECT_EQ(board->lane(1).granules(), 1u);
  post(board->lane(1));
  EXPECT_EQ(board->posted(), 0u);
  EXPECT_EQ(board->lane(1).posted(), 1u);
  uint64_t cursor = 0;
  Board::Claim claim;
  EXPECT_FALSE(board->claim(0, cursor, claim));
  EXPECT_FALSE(board->lane(2).claim(0, cursor, claim));
  ASSERT_TRUE(board->lane(1).claim(0, cursor, claim));
  EXPECT_EQ(claim.lane, 1u);
  EXPECT_EQ(ticket_of(claim).lane, 1u);
  auto [lane, seq, granule] = board->address_of(board->number_of(claim));
  EXPECT_EQ(&lane, &board->lane(1));
  EXPECT_EQ(seq, claim.seq);
  EXPECT_EQ(granule, 0u);
  testing::finish(board->lane(1), claim);
  EXPECT_TRUE(board->lane(1).ready(0));
}

TEST(BoardLanes, another_process_finds_them) {
  auto board = board_of_lanes(2, true);
  auto opened = Board::open(board->fd());
  ASSERT_EQ(opened->lanes(), 3u);
  EXPECT_EQ(opened->lane(2).posts(), 8u);
  post(board->lane(2));
  uint64_t cursor = 0;
  Board::Claim claim;
  ASSERT_TRUE(opened->lane(2).claim(1, cursor, claim));
  EXPECT_EQ(state(board->lane(2), 0), UnitState::kClaimed);
  testing::finish(opened->lane(2), claim);
  EXPECT_TRUE(board->lane(2).ready(0));
  board->close();
  EXPECT_TRUE(opened->lane(1).closed());
}

TEST(BoardLanes, the_death_of_a_worker_opens_its_tickets_in_all) {
  auto board = board_of_lanes(2);
  for (uint32_t l = 0; l < 3; ++l) {
    post(board->lane(l));
    uint64_t cursor = 0;
    Board::Claim claim;
    ASSERT_TRUE(board->lane(l).claim(1, cursor, claim));
  }
  for (uint32_t l = 0; l < 3; ++l) {
    EXPECT_EQ(board->lane(l).reopen(1, 3, testing::drop, nullptr), 1u);
    EXPECT_EQ(state(board->lane(l), 0), UnitState::kOpen);
  }
  // Another one, which has looked behind all of them already, finds them.
  for (uint32_t l = 0; l < 3; ++l) {
    uint64_t cursor = 0;
    Board::Claim claim;
    EXPECT_TRUE(board->lane(l).claim(0, cursor, claim)) << l;
  }
}

// Finishes tickets with their lane's number.
struct Numbering : Fulfiller {
  void run(const Ticket& ticket, Slot& slot) override {
    slot.finish_inline(ResultKind::kPacket, ticket.lane, {});
  }
};

TEST(BoardLanes, a_worker_that_sleeps_is_woken_by_any) {
  auto board = board_of_lanes(1);
  Numbering worker;
  std::thread serving([&] { serve(*board, 0, worker, nullptr); });
  for (uint32_t l : {1u, 0u, 2u, 1u}) {
    while (!board->asleep(0)) std::this_thread::yield();
    Board& lane = board->lane(l);
    const uint64_t seq = post(lane);
    while (!lane.ready(seq)) lane.consumer_wait(seq, -1);
    EXPECT_EQ(lane.unit_at(seq, 0).bytes, l);
    lane.clear(seq);
    lane.advance_head(seq + 1);
  }
  board->close();
  serving.join();
}

// Which tickets one worker makes sooner than all would have to be known of all lanes together.
TEST(BoardLanes, tickets_of_several_lanes_are_for_all_workers) {
  auto board = board_of_lanes(2);
  board->set_exclusive(true);
  for (uint32_t worker : {0, 1}) {
    board->place(worker).ticket_ns.store(1'000);
    board->place(worker).serving.store(1);
  }
  for (uint32_t l = 0; l < 3; ++l) {
    const uint64_t seq = post(board->lane(l));
    board->lane(l).consumer_wait(seq, 1);
    EXPECT_FALSE(board->lane(l).one_does()) << l;
  }
  EXPECT_FALSE(board->spare(1));
}

TEST(BoardLanes, closing_wakes_every_consumer) {
  auto board = board_of_lanes(1);
  std::vector<std::thread> consumers;
  for (uint32_t l = 0; l < 3; ++l) {
    const uint64_t seq = post(board->lane(l));
    consumers.emplace_back([&board, l, seq] {
      while (!board->closed()) board->lane(l).consumer_wait(seq, -1);
    });
  }
  board->close();
  for (std::thread& consumer : consumers) consumer.join();
}

TEST(BoardLanes, only_in_the_first_does_a_post_wait_for_room) {
  auto board = board_of_lanes(1);
  Allocator::Options few;
  few.max_bytes = 1 << 20;
  Allocator arena(Region::create(Region::Kind::kPrivate), few);
  auto proposed = [](Board& lane, uint64_t seq) {
    Post& of = lane.post_at(seq);
    of.needed_bytes = 1 << 30;
    of.layout_state = lane.layout_word(seq, LayoutState::kProposed);
  };
  for (uint32_t l : {0u, 1u}) {
    Board& lane = board->lane(l);
    post(lane);
    proposed(lane, post(lane));
    EXPECT_EQ(serve_room(lane, arena), l == 1);
    EXPECT_EQ(Post::layout_state_of(lane.post_at(1).layout_state),
              l == 0 ? LayoutState::kProposed : LayoutState::kNoRoom);
  }
}

}  // namespace
}  // namespace penstock
