#include "penstock/device/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/device/stage.h"
#include "tests/cpp/device/fake.h"

namespace penstock::device {
namespace {

using testing::ConsumerStream;
using testing::Fake;
using testing::filled;
using testing::Taken;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kNear = 500 * kMs;  // a machine that is busy wakes threads late

class TimelineTest : public ::testing::Test {
 protected:
  TimelineTest() : driver(Driver::load(PENSTOCK_FAKE_DRIVER)), stream(*driver) {}

  // A span of so many milliseconds on the stream; returns the host's times around it.
  std::pair<uint64_t, uint64_t> span(Timeline& timeline, long ms, uint64_t batch) const {
    const uint64_t before = now_ns();
    Timeline::Mark* begin = timeline.mark(stream.get());
    fake.delay(stream.get(), ms * 1000);
    Timeline::Mark* end = timeline.mark(stream.get());
    fake.finish(stream.get());
    timeline.read();  // renews the base
    timeline.add_copy(begin, *end, batch);
    timeline.drop(end);
    return {before, now_ns()};
  }

  static std::vector<TraceEvent> of_kind(const std::vector<TraceEvent>& all, TraceKind kind) {
    std::vector<TraceEvent> found;
    std::ranges::copy_if(all, std::back_inserter(found),
                         [&](const TraceEvent& event) { return event.kind == kind; });
    return found;
  }

  Fake fake;
  std::shared_ptr<const Driver> driver;
  ConsumerStream stream;
};

TEST_F(TimelineTest, a_span_has_the_times_of_the_host_clock) {
  fake.set("clock_ms", 5'000'000);  // another zero
  Timeline timeline(*driver, stream.get());
  const auto [before, after] = span(timeline, 30, 7);
  const std::vector<TraceEvent> copies = timeline.copies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].step, 7u);
  EXPECT_GE(copies[0].span_ns, 29 * kMs);
  EXPECT_GE(copies[0].begin_ns + kNear, before);
  EXPECT_LE(copies[0].begin_ns + copies[0].span_ns, after + kNear);
  timeline.end();
}

TEST_F(TimelineTest, nothing_is_read_before_it_has_passed) {
  Timeline timeline(*driver, stream.get());
  span(timeline, 1, 1);
  Timeline::Mark* begin = timeline.mark(stream.get());
  fake.delay(stream.get(), 100'000);
  timeline.add_step(begin, timeline.mark(stream.get()), 1);
  timeline.read();
  EXPECT_TRUE(timeline.steps().empty());
  fake.finish(stream.get());
  timeline.read();
  EXPECT_EQ(timeline.steps().size(), 1u);
  timeline.end();
}

TEST_F(TimelineTest, a_step_is_read_after_the_copy_of_its_batch_and_begins_at_its_end) {
  Timeline timeline(*driver, stream.get());
  Timeline::Mark *taken = timeline.mark(stream.get()), *sent = timeline.mark(stream.get());
  fake.delay(stream.get(), 20'000);
  Timeline::Mark* copied = timeline.mark(stream.get());
  fake.delay(stream.get(), 30'000);
  timeline.add_step(taken, timeline.mark(stream.get()), 5);
  fake.finish(stream.get());
  timeline.read();
  EXPECT_TRUE(timeline.steps().empty());
  timeline.add_copy(sent, *copied, 5);
  timeline.drop(copied);
  timeline.read(2);
  EXPECT_TRUE(timeline.steps().empty()) << "only one step was added";
  timeline.read();
  const std::vector<TraceEvent> steps = timeline.steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].kind, TraceKind::kDeviceWait);
  EXPECT_GE(steps[0].span_ns, 19 * kMs);
  EXPECT_EQ(steps[1].kind, TraceKind::kDeviceStep);
  EXPECT_GE(steps[1].span_ns, 29 * kMs);
  EXPECT_EQ(steps[1].begin_ns, steps[0].begin_ns + steps[0].span_ns);
  timeline.end();
}

// A float of milliseconds resolves 64 ms after a base of days ago, and the clocks drift apart.
TEST_F(TimelineTest, a_renewed_base_keeps_spans_exact_in_a_long_run) {
  Timeline renewed(*driver, stream.get(), 0), old(*driver, stream.get());
  fake.set("clock_ms", 1'000'000'000);
  span(renewed, 1, 0);  // records the next base
  for (uint64_t batch = 1; batch <= 3; ++batch) {
    const auto [before, after] = span(renewed, 25, batch);
    const std::vector<TraceEvent> copies = renewed.copies();
    const auto last = std::ranges::find(copies, batch, &TraceEvent::step);
    ASSERT_NE(last, copies.end()) << batch;
    EXPECT_NE(last->span_ns % (64 * kMs), 0u);
    EXPECT_GE(last->span_ns, 24 * kMs);
    // The base passed between two reads.
    EXPECT_GE(last->begin_ns + 2000 * kMs, before) << batch;
    EXPECT_LE(last->begin_ns + last->span_ns, after + 2000 * kMs) << batch;
  }
  span(old, 25, 1);
  EXPECT_EQ(old.copies().at(0).span_ns % (64 * kMs), 0u);
  EXPECT_GT(old.copies().at(0).begin_ns, now_ns() + 10'000 * kMs);
  renewed.end();
  old.end();
}

TEST_F(TimelineTest, all_events_are_destroyed) {
  const long before = fake.get("events");
  Timeline timeline(*driver, stream.get(), 0);
  span(timeline, 1, 0);
  span(timeline, 1, 1);
  timeline.add_step(timeline.mark(stream.get()), nullptr, 2);
  Timeline::Mark* both = timeline.mark(stream.get());
  timeline.add_step(both, timeline.share(both), 3);
  timeline.end();
  EXPECT_EQ(fake.get("events"), before);
  EXPECT_EQ(timeline.mark(stream.get()), nullptr);
}

TEST_F(TimelineTest, a_stage_times_copies_waits_and_steps) {
  fake.set("copy_us", 30'000);
  const auto stage = Stage::open(0, PENSTOCK_FAKE_DRIVER);
  const uint64_t begun = now_ns();
  for (uint8_t i = 0; i < 3; ++i) {
    const auto batch = stage->put({filled(10, i), filled(3, i)});
    const Taken one(batch, 0, stream.number()), two(batch, 1, stream.number());
    fake.delay(stream.get(), 20'000);  // the step
  }
  fake.finish(stream.get());
  const Stage::Traces traces = stage->traces();
  ASSERT_EQ(traces.copies.size(), 3u);
  const auto steps = of_kind(traces.steps, TraceKind::kDeviceStep);
  const auto waits = of_kind(traces.steps, TraceKind::kDeviceWait);
  ASSERT_EQ(steps.size(), 3u);
  ASSERT_LE(waits.size(), 3u);
  EXPECT_EQ(waits.empty(), stage->figures().late == 0);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(traces.copies[i].step, i);
    EXPECT_GE(traces.copies[i].span_ns, 29 * kMs);
    EXPECT_EQ(steps[i].step, i);
    EXPECT_GE(steps[i].span_ns, 19 * kMs);
    // The step begins when the copy has ended, and the wait is not part of it.
    EXPECT_GE(steps[i].begin_ns + kMs, traces.copies[i].begin_ns + traces.copies[i].span_ns);
  }
  for (const TraceEvent& wait : waits) {
    EXPECT_GE(steps[wait.step].begin_ns + kMs, wait.begin_ns + wait.span_ns);
  }
  EXPECT_GE(traces.copies[0].begin_ns + kNear, begun);
  EXPECT_LE(steps[2].begin_ns + steps[2].span_ns, now_ns() + kNear);
  EXPECT_EQ(stage->figures().events, 6u) << "events of the timeline do not count";
}

TEST_F(TimelineTest, a_step_ends_when_the_next_batch_is_asked_for) {
  const auto stage = Stage::open(0, PENSTOCK_FAKE_DRIVER);
  const auto first = stage->put({filled(10, 1)}), second = stage->put({filled(10, 2)});
  stage->reap(true);
  const Taken one(first, 0, stream.number());
  fake.delay(stream.get(), 20'000);
  const Taken two(second, 0, stream.number());  // the first one is still held
  fake.delay(stream.get(), 200'000);
  fake.finish(stream.get());
  const auto steps = stage->traces().steps;
  ASSERT_EQ(steps.size(), 1u) << "the second step has not ended";
  EXPECT_EQ(steps[0].step, 0u);
  EXPECT_LT(steps[0].span_ns, 190 * kMs);
}

}  // namespace
}  // namespace penstock::device
