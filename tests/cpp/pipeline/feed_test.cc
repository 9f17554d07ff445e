// The feed: what is posted when, what is handed out in which order, and what becomes of work that
// was taken back while somebody was at it. Tickets are claimed by hand, so nothing here depends on
// time.
#include "penstock/pipeline/feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/tickets.h"

namespace penstock {
namespace {

constexpr uint64_t kRowBytes = 100'000;

struct Settings {
  uint64_t length = 10;
  uint64_t batch = 1;
  uint32_t queue = 3, workers = 1;
  uint64_t max_bytes = UINT64_MAX;
  bool ordered = true, pause = false;
  uint32_t granule_rows = 1;
  size_t arena_bytes = SIZE_MAX;
};

// Rows whose bytes are the step; whole items are packets that say where they belong.
class Writes : public Fulfiller {
 public:
  explicit Writes(bool rows) : rows_(rows) {}
  void run(const Ticket& ticket, Slot& slot) override {
    if (!rows_) {
      Position at{ticket.epoch, ticket.base, ticket.step};
      slot.finish_inline(ResultKind::kPacket, kRowBytes, std::as_bytes(std::span(&at, 1)));
      return;
    }
    std::byte* base = slot.rows(std::as_bytes(std::span("r", 1)), ticket.rows * kRowBytes);
    std::memset(base + ticket.begin * kRowBytes, static_cast<int>(ticket.step),
                (ticket.end - ticket.begin) * kRowBytes);
    slot.finish_inline(ResultKind::kRows, (ticket.end - ticket.begin) * kRowBytes, {});
  }

 private:
  bool rows_;
};

class World {
 public:
  explicit World(const Settings& s, std::unique_ptr<Tickets> tickets = nullptr, bool rows = false)
      : order_({.length = s.length, .batch_size = s.batch}),
        tickets_(tickets ? std::move(tickets) : std::make_unique<IndexedTickets>(order_)),
        board_(Board::create({2 * (s.queue + s.workers) + 2,
                              static_cast<uint32_t>(s.batch / s.granule_rows), s.workers + 1},
                             false)),
        arena_(Region::create(Region::Kind::kPrivate), {.max_bytes = s.arena_bytes}),
        memory_(arena_),
        writes_(rows),
        feed_(*board_, arena_, *tickets_, options_of(s), [this](Unit&) { ++discarded_; }) {}

  static Feed::Options options_of(const Settings& s) {
    Feed::Options options;
    options.queue = s.queue;
    options.workers = s.workers;
    options.max_bytes = s.max_bytes;
    options.ordered = s.ordered;
    options.pause_at_epochs = s.pause;
    options.granule_rows = s.granule_rows;
    return options;
  }

  Feed& feed() { return feed_; }
  Board& board() { return *board_; }
  Allocator& arena() { return arena_; }
  int discarded() const { return discarded_; }

  uint64_t in_flight() { return board_->posted() - board_->head(); }
  void work(uint64_t seq) { serve_post(*board_, 0, seq, writes_, &memory_); }
  void work_all() {
    for (uint64_t seq = board_->head(); seq < board_->posted(); ++seq) work(seq);
  }
  std::optional<Board::Claim> claim(uint32_t worker = 1) {
    uint64_t cursor = UINT64_MAX;
    Board::Claim claim;
    return board_->claim(worker, cursor, claim) ? std::optional(claim) : std::nullopt;
  }
  Slot slot_of(const Board::Claim& claim) { return Slot(*board_, claim, &memory_, writes_); }
  void finish(const Board::Claim& claim) {
    Slot slot = slot_of(claim);
    writes_.run(ticket_of(claim), slot);
  }
  // The next batch's place; nothing at the epoch's end. Works in line when it must.
  std::optional<Position> take(uint64_t epoch) {
    for (;;) {
      switch (feed_.poll(epoch)) {
        case Feed::Poll::kFailed:
          throw std::logic_error("these tickets do not fail");
        case Feed::Poll::kEpochEnd:
          return std::nullopt;
        case Feed::Poll::kWait:
          EXPECT_TRUE(feed_.next_open());
          if (!feed_.next_open()) return std::nullopt;
          work(*feed_.next_open());
          break;
        case Feed::Poll::kBatch: {
          Post& post = feed_.current();
          Position at{post.epoch, post.base, post.step};
          Unit& unit = board_->unit_at(feed_.current_seq(), 0);
          if (unit.kind == ResultKind::kPacket) {
            Position said;
            std::memcpy(&said, unit.packet, sizeof(said));
            EXPECT_EQ(said, at);
          }
          uint64_t bytes = unit.bytes * post.granules;
          unit.kind = ResultKind::kNone;  // taken: not to be discarded
          if (post.slot_bytes != 0) lease_ = feed_.take_rows();
          feed_.deliver(bytes, post.rows);
          return at;
        }
      }
    }
  }
  Lease& lease() { return lease_; }

 private:
  Order order_;
  std::unique_ptr<Tickets> tickets_;
  std::unique_ptr<Board> board_;
  Allocator arena_;
  LocalRows memory_;
  Writes writes_;
  int discarded_ = 0;
  Feed feed_;
  Lease lease_;
};

// ---- window -------------------------------------------------------------------------------------

TEST(Feed, as_much_is_posted_as_queue_and_workers_hold) {
  World world({.length = 100, .queue = 3, .workers = 2});
  EXPECT_EQ(world.in_flight(), 0u);
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kWait);
  EXPECT_EQ(world.in_flight(), 0u);  // nothing before begin_epoch
  world.feed().begin_epoch();
  EXPECT_EQ(world.in_flight(), 5u);
  for (uint64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(world.take(0), (Position{0, 0, step}));
    EXPECT_EQ(world.in_flight(), 5u);
  }
}

TEST(Feed, the_budget_of_bytes_bounds_it_too_but_for_one) {
  for (uint64_t batches : {0, 1, 2, 4}) {
    World world({.length = 30, .queue = 6, .max_bytes = batches * kRowBytes});
    world.feed().begin_epoch();
    world.take(0);
    for (int i = 0; i < 10; ++i) world.take(0);  // what was posted before its size was known
    EXPECT_EQ(world.in_flight(), std::max<uint64_t>(batches, 1));
  }
}

TEST(Feed, batches_that_count_no_bytes_fill_the_queue_too) {
  World world({.length = 30, .queue = 6, .max_bytes = 1000});
  world.feed().begin_epoch();
  EXPECT_EQ(world.in_flight(), 1u);  // nobody knows yet
  world.work(0);
  ASSERT_EQ(world.feed().poll(0), Feed::Poll::kBatch);
  world.board().unit_at(0, 0).kind = ResultKind::kNone;  // taken
  world.feed().deliver(0, 1);
  EXPECT_EQ(world.in_flight(), 7u);
}

TEST(Feed, prefetching_runs_across_the_end_of_an_epoch_unless_it_is_to_pause) {
  for (bool pause : {false, true}) {
    World world({.length = 4, .queue = 5, .pause = pause});
    world.feed().begin_epoch();
    EXPECT_EQ(world.in_flight(), pause ? 4u : 6u);
    for (uint64_t step = 0; step < 4; ++step) EXPECT_EQ(world.take(0), (Position{0, 0, step}));
    EXPECT_EQ(world.feed().position(), (Position{1, 0, 0}));
    EXPECT_EQ(world.take(0), std::nullopt);
    EXPECT_EQ(world.in_flight(), pause ? 0u : 6u);
    world.feed().begin_epoch();
    EXPECT_EQ(world.take(1), (Position{1, 0, 0}));
  }
}

TEST(Feed, an_empty_epoch_ends_at_once) {
  World world({.length = 0});
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    world.feed().begin_epoch();
    EXPECT_EQ(world.take(epoch), std::nullopt);
    EXPECT_EQ(world.feed().position().epoch, epoch + 1);
  }
}

// ---- order --------------------------------------------------------------------------------------

TEST(Feed, batches_that_are_done_early_wait_for_their_turn) {
  World world({.length = 10, .queue = 3});
  world.feed().begin_epoch();
  for (uint64_t seq : {3, 1, 2}) world.work(seq);
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kWait);
  EXPECT_EQ(world.feed().depth(), 3u);
  world.work(0);
  for (uint64_t step = 0; step < 4; ++step) EXPECT_EQ(world.take(0)->step, step);
}

TEST(Feed, an_unordered_feed_takes_them_as_they_are_done) {
  World world({.length = 6, .queue = 3, .ordered = false});
  world.feed().begin_epoch();
  world.work(2);
  EXPECT_EQ(world.take(0)->step, 2u);
  world.work(1);
  EXPECT_EQ(world.take(0)->step, 1u);
  EXPECT_EQ(world.feed().position(), (Position{0, 0, 0}));
  EXPECT_EQ(world.feed().ahead(), (std::set<uint64_t>{1, 2}));
  world.work(4);
  EXPECT_EQ(world.take(0)->step, 4u);
  world.work(0);
  EXPECT_EQ(world.take(0)->step, 0u);
  EXPECT_EQ(world.feed().position(), (Position{0, 0, 3}));
  EXPECT_EQ(world.feed().ahead(), (std::set<uint64_t>{4}));
  // The next epoch's batches are not taken before this one's are all out.
  for (uint64_t seq = world.board().head(); seq < world.board().posted(); ++seq) {
    if (world.board().post_at(seq).epoch == 1) world.work(seq);
  }
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kWait);
  world.work_all();
  std::set<uint64_t> rest{world.take(0)->step, world.take(0)->step};
  EXPECT_EQ(rest, (std::set<uint64_t>{3, 5}));
  EXPECT_EQ(world.take(0), std::nullopt);
  EXPECT_TRUE(world.feed().ahead().empty());
}

// ---- seeking ------------------------------------------------------------------------------------

TEST(Feed, seeking_goes_anywhere_and_makes_nothing_twice) {
  World world({.length = 10, .queue = 3});
  world.feed().begin_epoch();
  for (Position to : {Position{0, 0, 7}, {3, 0, 0}, {1, 4, 2}, {0, 0, 0}, {0, 0, 9}}) {
    world.work_all();
    world.feed().seek(to);
    EXPECT_EQ(world.feed().position(), to);
    EXPECT_EQ(world.take(to.epoch), to);
  }
}

TEST(Feed, what_was_delivered_ahead_is_left_out) {
  for (uint32_t queue : {1, 3, 10}) {
    for (bool pause : {false, true}) {
      World world({.length = 8, .queue = queue, .workers = 0, .ordered = false, .pause = pause});
      world.feed().seek({2, 0, 1}, {3, 4, 6, 7});
      world.feed().begin_epoch();
      std::vector<uint64_t> steps;
      while (auto at = world.take(2)) steps.push_back(at->step);
      EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2, 5}));
      EXPECT_EQ(world.feed().position(), (Position{3, 0, 0}));
      EXPECT_EQ(world.in_flight() == 0, pause);
      world.feed().begin_epoch();
      EXPECT_EQ(world.take(3), (Position{3, 0, 0}));
    }
  }
}

TEST(Feed, a_claimed_granule_keeps_its_memory_until_its_worker_is_done) {
  World world({.length = 40, .batch = 4, .queue = 2}, nullptr, true);
  world.feed().begin_epoch();
  for (int i = 0; i < 4; ++i) world.take(0);  // from here on posts come with room
  world.lease().reset();
  world.feed().poll(0);
  auto zombie = world.claim();
  ASSERT_TRUE(zombie);
  Slot slot = world.slot_of(*zombie);
  std::byte* room = slot.rows(std::as_bytes(std::span("r", 1)), 4 * kRowBytes);
  ASSERT_NE(room, nullptr);
  world.feed().seek({0, 0, 0});
  EXPECT_FALSE(world.feed().settle(0));
  for (int lap = 0; lap < 3; ++lap) {  // others use the ring around it
    for (uint64_t step = 0; step < 3; ++step) {
      world.feed().poll(0);
      if (!world.feed().next_open()) break;
      EXPECT_EQ(world.take(0)->step, step);
      ASSERT_NE(world.lease().data(), room);
      for (size_t at = 0; at < world.lease().bytes(); at += kRowBytes) {
        EXPECT_EQ(world.lease().data()[at], std::byte(step));
      }
    }
    world.feed().seek({0, 0, 0});
  }
  EXPECT_EQ(world.arena().bytes_of(room), 4 * kRowBytes);
  {
    Slot::Write ours(slot);
    EXPECT_TRUE(static_cast<bool>(ours));
    std::memset(room, 0xee, 4 * kRowBytes);
  }
  EXPECT_TRUE(slot.finish_inline(ResultKind::kRows, 0, {}));
  int before = world.discarded();
  EXPECT_TRUE(world.feed().settle(-1));
  EXPECT_EQ(world.discarded(), before + 1);
  EXPECT_EQ(world.arena().bytes_of(room), 0u);
}

TEST(Feed, withdrawn_work_blocks_the_ring_only_until_it_is_done) {
  World world({.length = 100, .queue = 1, .workers = 1});
  world.feed().begin_epoch();
  auto zombie = world.claim();
  world.feed().seek({0, 0, 5});
  uint64_t taken = 0;
  while (world.feed().poll(0) == Feed::Poll::kBatch || world.feed().next_open()) {
    world.take(0);
    ++taken;
  }
  EXPECT_LT(taken, world.board().posts());
  EXPECT_EQ(world.in_flight(), 0u);
  std::thread worker([&] { world.finish(*zombie); });
  world.feed().wait(-1);  // for the place
  worker.join();
  EXPECT_EQ(world.take(0)->step, 5 + taken);
}

TEST(Feed, settling_waits_for_every_claimed_granule) {
  for (int round = 0; round < 50; ++round) {
    World world({.length = 40, .batch = 3, .queue = 2, .workers = 2});
    world.feed().begin_epoch();
    std::vector<Board::Claim> claims;
    for (int i = 0; i < 5; ++i) claims.push_back(*world.claim(uint32_t(i % 3)));
    world.feed().seek({1, 0, 0});
    std::atomic<int> finished = 0;
    std::thread worker([&] {
      for (auto& claim : claims) {
        ++finished;
        world.finish(claim);
      }
    });
    while (!world.feed().settle(-1)) {
    }
    EXPECT_EQ(finished, 5);
    worker.join();
  }
}

// ---- errors, skips, ends ------------------------------------------------------------------------

TEST(Feed, after_a_failure_the_position_is_the_failed_ticket) {
  World world({.length = 10, .queue = 3});
  world.feed().begin_epoch();
  world.take(0);
  world.work_all();
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kBatch);
  world.feed().fail();
  EXPECT_EQ(world.feed().position(), (Position{0, 0, 1}));
  EXPECT_EQ(world.in_flight(), 0u);
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kWait);
  EXPECT_EQ(world.in_flight(), 0u);  // nothing is made until somebody asks
  world.feed().begin_epoch();
  EXPECT_EQ(world.take(0), (Position{0, 0, 1}));
  EXPECT_EQ(world.board().consumer().errors.get(), 1u);
}

TEST(Feed, a_skipped_batch_counts_as_a_step_and_not_as_delivered) {
  World world({.length = 4, .queue = 3});
  world.feed().begin_epoch();
  world.work_all();
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kBatch);
  world.feed().skip();
  for (uint64_t step = 1; step < 4; ++step) EXPECT_EQ(world.take(0)->step, step);
  EXPECT_EQ(world.take(0), std::nullopt);
  EXPECT_EQ(world.board().consumer().delivered.get(), 3u);
  EXPECT_EQ(world.board().consumer().epochs.get(), 1u);
}

TEST(Feed, an_epoch_of_streams_ends_with_the_last_of_them) {
  World world({.queue = 4, .workers = 1, .pause = true}, std::make_unique<StreamTickets>(2, 1));
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    world.feed().begin_epoch();
    uint64_t length[2] = {2, 5};
    std::vector<uint64_t> seen;
    for (;;) {
      Feed::Poll poll = world.feed().poll(epoch);
      if (poll == Feed::Poll::kEpochEnd) break;
      if (poll == Feed::Poll::kWait) {
        // Each stream's owner makes its next ticket, or says that there is none.
        Post& post = world.board().post_at(world.board().head());
        EXPECT_EQ(post.owner, post.step % 2);
        auto claim = world.claim(post.owner);
        ASSERT_TRUE(claim);
        Ticket ticket = ticket_of(*claim);
        claim->unit->bytes = ticket.step;
        ASSERT_TRUE(world.board().begin_result(*claim));
        claim->unit->kind =
            ticket.step / 2 < length[ticket.stream] ? ResultKind::kNone : ResultKind::kEnd;
        world.board().finish(*claim);
        continue;
      }
      Unit& unit = world.board().unit_at(world.feed().current_seq(), 0);
      if (unit.kind == ResultKind::kEnd) {
        world.feed().end_stream();
      } else {
        seen.push_back(unit.bytes);
        world.feed().deliver(1, 1);
      }
    }
    EXPECT_EQ(seen, (std::vector<uint64_t>{0, 1, 2, 3, 5, 7, 9}));
    EXPECT_EQ(world.feed().position(), (Position{epoch + 1, 0, 0}));
    EXPECT_EQ(world.in_flight(), 0u);
    EXPECT_EQ(world.feed().poll(epoch), Feed::Poll::kEpochEnd);
    EXPECT_EQ(world.in_flight(), 0u);  // the next epoch waits for begin_epoch
  }
}

constexpr uint32_t kLongRows = 1000;  // looking whether all of them are there takes microseconds

class OneStream : public Tickets {
 public:
  std::optional<uint64_t> steps(uint64_t, uint64_t) override { return std::nullopt; }
  Described describe(const Position&, Post& post) override {
    post.rows = kLongRows;
    return Described::kPosted;
  }
  uint32_t streams() const override { return 1; }
};

TEST(Feed, a_stream_does_not_end_before_what_it_gave_last) {
  for (int round = 0; round < 20; ++round) {
    World world({.batch = kLongRows, .queue = 2, .ordered = false}, std::make_unique<OneStream>());
    world.feed().begin_epoch();
    std::vector<Board::Claim> claims(2 * kLongRows);
    uint64_t cursor = 0;
    for (Board::Claim& claim : claims) ASSERT_TRUE(world.board().claim(1, cursor, claim));
    for (size_t i = 1; i + 1 < claims.size(); ++i) world.finish(claims[i]);
    // Both get ready while the feed looks at the second.
    std::thread worker([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      world.finish(claims.front());
      world.finish(claims.back());
    });
    Feed::Poll poll;
    while ((poll = world.feed().poll(0)) == Feed::Poll::kWait) {
    }
    uint64_t seq = world.feed().current_seq();
    worker.join();
    ASSERT_EQ(poll, Feed::Poll::kBatch);
    ASSERT_EQ(seq, 0u);
  }
}

// ---- memory -------------------------------------------------------------------------------------

TEST(Feed, slots_are_recycled_and_a_short_last_batch_changes_nothing) {
  World world({.length = 42, .batch = 4, .queue = 2}, nullptr, true);
  world.feed().begin_epoch();
  std::set<std::byte*> places;
  uint64_t faulted = 0;
  for (uint64_t epoch = 0; epoch < 6; ++epoch) {
    for (uint64_t step = 0; auto at = world.take(epoch); ++step) {
      EXPECT_EQ(at->step, step);
      EXPECT_EQ(world.lease().data()[0], std::byte(step));
      places.insert(world.lease().data());
      world.lease().reset();
    }
    if (epoch == 1) faulted = world.arena().stats().faulted_bytes;
  }
  EXPECT_EQ(world.arena().stats().faulted_bytes, faulted);
  EXPECT_LE(places.size(), 5u);
}

TEST(Feed, a_held_batch_is_never_written_again) {
  World world({.length = 20, .batch = 2, .queue = 2}, nullptr, true);
  world.feed().begin_epoch();
  std::vector<Lease> held;
  while (world.take(0)) held.push_back(std::move(world.lease()));
  ASSERT_EQ(held.size(), 10u);
  for (size_t step = 0; step < held.size(); ++step) {
    for (size_t at = 0; at < 2 * kRowBytes; at += 999) {
      EXPECT_EQ(held[step].data()[at], std::byte(step));
    }
  }
}

TEST(Feed, a_batch_that_cannot_be_leased_for_want_of_memory_is_an_error) {
  // Just the batch: there is no page for the header of its lease.
  size_t batch = (4 * kRowBytes + 65535) / 65536 * 65536;
  World world({.length = 8, .batch = 4, .queue = 2, .arena_bytes = batch}, nullptr, true);
  world.feed().begin_epoch();
  world.work(0);
  ASSERT_EQ(world.feed().poll(0), Feed::Poll::kBatch);
  for (uint32_t g = 0; g < 4; ++g) {
    ASSERT_EQ(world.board().unit_at(0, g).kind, ResultKind::kRows);
    world.board().unit_at(0, g).kind = ResultKind::kNone;  // taken
  }
  EXPECT_THROW(world.feed().take_rows(), Error);
  EXPECT_EQ(world.feed().position(), (Position{0, 0, 0}));
  EXPECT_EQ(world.in_flight(), 0u);
}

TEST(Feed, memory_that_an_abandoned_thread_may_write_to_is_not_used_again) {
  World world({.length = 40, .batch = 2, .queue = 2}, nullptr, true);
  world.feed().begin_epoch();
  world.take(0);
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kWait);
  world.work_all();
  EXPECT_EQ(world.feed().poll(0), Feed::Poll::kBatch);
  world.feed().current().tainted.store(1);
  world.take(0);
  std::byte* tainted = world.lease().data();
  world.lease().reset();
  for (int i = 0; i < 12; ++i) {
    world.take(0);
    EXPECT_NE(world.lease().data(), tainted);
    world.lease().reset();
  }
}

TEST(Feed, what_nobody_took_is_discarded_once) {
  World world({.length = 20, .queue = 4});
  world.feed().begin_epoch();
  world.work_all();
  world.take(0);
  world.board().close();
  int before = world.discarded();
  world.feed().drain();
  EXPECT_EQ(world.discarded(), before + 4);
  world.feed().drain();
  EXPECT_EQ(world.discarded(), before + 4);
}

// ---- closing ------------------------------------------------------------------------------------

TEST(Feed, closing_from_another_thread_ends_any_wait) {
  for (bool ordered : {true, false}) {
    for (int round = 0; round < 50; ++round) {
      World world({.length = 20, .queue = 4, .ordered = ordered});
      world.feed().begin_epoch();
      std::thread closer([&] { world.board().close(); });
      while (!world.board().closed()) world.feed().wait(-1);
      closer.join();
      EXPECT_EQ(world.feed().poll(0), Feed::Poll::kWait);
      auto before = world.board().posted();
      world.feed().seek({1, 0, 0});
      world.feed().begin_epoch();
      EXPECT_EQ(world.board().posted(), before);
    }
  }
}

}  // namespace
}  // namespace penstock
