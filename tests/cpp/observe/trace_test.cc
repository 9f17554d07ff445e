#include "penstock/observe/trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace penstock {
namespace {

constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMillisecond = 1'000'000;

std::unique_ptr<TraceRing> empty_ring() { return std::make_unique<TraceRing>(); }

TEST(Trace, gives_back_what_was_recorded_in_order_of_time) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  writer.record(TraceKind::kUser, 20 * kMillisecond, 25 * kMillisecond, 3, 9, 2);
  writer.record(TraceKind::kWaitTicket, 10 * kMillisecond, 20 * kMillisecond);
  const auto events = events_of(*ring);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, TraceKind::kWaitTicket);
  EXPECT_EQ(events[1].kind, TraceKind::kUser);
  EXPECT_EQ(events[1].begin_ns, 20 * kMillisecond);
  EXPECT_EQ(events[1].span_ns, 5 * kMillisecond);
  EXPECT_EQ(events[1].active_ns, 5 * kMillisecond);
  EXPECT_EQ(events[1].epoch, 3U);
  EXPECT_EQ(events[1].step, 9U);
  EXPECT_EQ(events[1].granule, 2U);
  EXPECT_EQ(events[1].count, 1U);
}

TEST(Trace, a_writer_without_a_ring_records_nothing) {
  TraceWriter writer;
  writer.record(TraceKind::kUser, 1, 2);
  TraceWriter(nullptr).record(TraceKind::kUser, 1, 2);
}

TEST(Trace, tiny_tickets_of_alternating_kinds_become_a_few_events_with_the_same_total) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  constexpr uint64_t kTickets = 10'000;
  uint64_t now = kMillisecond;
  for (uint64_t i = 0; i < kTickets; ++i) {
    writer.record(TraceKind::kUser, now, now + 1 * kUs, 0, i);
    writer.record(TraceKind::kWaitSlot, now + 1 * kUs, now + 2 * kUs, 0, i);
    now += 4 * kUs;
  }
  const auto events = events_of(*ring);
  EXPECT_LT(events.size(), kTickets / 100);
  uint64_t count = 0;
  double active = 0;
  for (const TraceEvent& event : events) {
    if (event.kind == TraceKind::kUser) {
      count += event.count;
      active += static_cast<double>(event.active_ns);
      EXPECT_LT(event.active_ns, event.span_ns / 3);
    }
  }
  EXPECT_EQ(count, kTickets);
  EXPECT_NEAR(active / (kTickets * kUs), 1.0, 0.02);
}

TEST(Trace, long_tickets_are_never_merged) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  for (uint64_t i = 0; i < 100; ++i) {
    writer.record(TraceKind::kUser, i * kMillisecond, (i + 1) * kMillisecond, 0, i);
  }
  EXPECT_EQ(events_of(*ring).size(), 100U);
}

TEST(Trace, short_pieces_far_apart_are_not_merged) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  for (uint64_t i = 0; i < 100; ++i) {
    writer.record(TraceKind::kUser, i * kMillisecond, i * kMillisecond + kUs, 0, i);
  }
  EXPECT_EQ(events_of(*ring).size(), 100U);
}

TEST(Trace, errors_and_restarts_are_never_merged) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  for (uint64_t i = 0; i < 10; ++i) {
    writer.record(TraceKind::kError, kMillisecond + i, kMillisecond + i, 0, i);
    writer.record(TraceKind::kRestart, kMillisecond + i, kMillisecond + i, 0, i);
  }
  EXPECT_EQ(events_of(*ring).size(), 20U);
}

TEST(Trace, keeps_the_latest_events_when_full) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  constexpr uint64_t kEvents = 3 * TraceRing::kCapacity + 17;
  for (uint64_t i = 0; i < kEvents; ++i) {
    writer.record(TraceKind::kUser, i * 10 * kMillisecond, i * 10 * kMillisecond + 6 * kMillisecond,
                  0, i);
  }
  const auto events = events_of(*ring);
  ASSERT_EQ(events.size(), TraceRing::kCapacity);
  EXPECT_EQ(events.front().step, kEvents - TraceRing::kCapacity);
  EXPECT_EQ(events.back().step, kEvents - 1);
}

TEST(Trace, merges_more_as_the_run_grows_longer) {
  auto ring = empty_ring();
  TraceWriter writer(ring.get());
  uint64_t now = kMillisecond;
  // Pieces of 50 us do not merge at first: without merging, only the last 0.8 s of 100 s would fit.
  constexpr uint64_t kPieces = 1'000'000;
  for (uint64_t i = 0; i < kPieces; ++i) {
    writer.record(TraceKind::kUser, now, now + 50 * kUs, 0, i);
    writer.record(TraceKind::kWaitTicket, now + 50 * kUs, now + 100 * kUs, 0, i);
    now += 100 * kUs;
  }
  const auto events = events_of(*ring);
  const uint64_t covered = now - events.front().begin_ns;
  EXPECT_GT(covered, 5'000 * kMillisecond);
}

TEST(Trace, a_new_writer_goes_on_after_one_that_was_killed_inside_an_event) {
  auto ring = empty_ring();
  {
    TraceWriter writer(ring.get());
    writer.record(TraceKind::kUser, 1 * kMillisecond, 2 * kMillisecond, 0, 1);
    // The next event was begun, and its writer stopped here.
    ring->begun.store(2);
    ring->events[1].begin_ns.store(2 * kMillisecond);
    ring->events[1].time.store(UINT64_MAX);
  }
  EXPECT_EQ(events_of(*ring).size(), 1U);
  TraceWriter writer(ring.get());
  writer.record(TraceKind::kUser, 5 * kMillisecond, 6 * kMillisecond, 0, 3);
  const auto events = events_of(*ring);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].step, 1U);
  EXPECT_EQ(events[1].step, 3U);
}

TEST(Trace, any_bytes_in_the_ring_are_read_without_harm) {
  auto ring = empty_ring();
  ring->begun.store(UINT64_MAX);
  ring->done.store(UINT64_MAX - 5);
  for (auto& event : ring->events) {
    event.time.store(UINT64_MAX);
    event.begin_ns.store(UINT64_MAX);
  }
  EXPECT_TRUE(events_of(*ring).empty());  // a kind that does not exist
}

// Each event's fields are derived from one number, so a torn event is detected.
TEST(Trace, a_reader_that_is_lapped_sees_no_torn_event) {
  auto ring = empty_ring();
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    TraceWriter writer(ring.get());
    for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      const uint64_t begin = i * 100 * kMillisecond;
      writer.record(TraceKind::kUser, begin, begin + 50 * kMillisecond + i % 1000, i % 77, i,
                    static_cast<uint32_t>(i));
    }
  });
  uint64_t seen = 0;
  uint64_t rounds = 0;
  // Until the writer has lapped the ring, and whole events were read meanwhile.
  while (ring->begun.load() < 20 * TraceRing::kCapacity || seen < 10'000) {
    const auto events = events_of(*ring);
    if (events.empty()) std::this_thread::yield();  // the writer has not had a core yet
    for (const TraceEvent& event : events) {
      const uint64_t i = event.begin_ns / (100 * kMillisecond);
      ASSERT_EQ(event.span_ns, 50 * kMillisecond + i % 1000);
      ASSERT_EQ(event.epoch, i % 77);
      ASSERT_EQ(event.step, i);
      ASSERT_EQ(event.granule, static_cast<uint32_t>(i));
    }
    seen += events.size();
    ASSERT_LT(++rounds, 1'000'000U);
  }
  stop.store(true);
  thread.join();
}

TEST(Trace, merging_while_being_read_never_makes_an_event_shorter) {
  auto ring = empty_ring();
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    TraceWriter writer(ring.get());
    uint64_t now = kMillisecond;
    while (!stop.load(std::memory_order_relaxed)) {
      writer.record(TraceKind::kUser, now, now + kUs);
      now += 2 * kUs;
    }
  });
  uint64_t reads = 0;
  while (reads < 200 || ring->done.load() < 100) {
    for (const TraceEvent& event : events_of(*ring)) {
      ASSERT_GE(event.count, 1U);
      ASSERT_LE(event.active_ns, event.span_ns);
      ASSERT_LE(event.span_ns, 100 * 5 * kMillisecond);
    }
    ++reads;
    ASSERT_LT(reads, 10'000'000U);
  }
  stop.store(true);
  thread.join();
}

}  // namespace
}  // namespace penstock
