#include "penstock/observe/live.h"

#include <gtest/gtest.h>

#include <array>

#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"

namespace penstock {
namespace {

constexpr uint64_t kMilli = 1'000'000;

TEST(LiveCounts, time_is_that_of_waiting_or_of_the_step_from_the_first_batch_on) {
  LiveCounts counts;
  counts.asked(5 * kMilli);
  counts.given(100 * kMilli, 0, 0);  // nothing came in time
  counts.asked(101 * kMilli);
  counts.given(200 * kMilli, 3, 30);
  counts.predicted(std::array{4 * kMilli, 2 * kMilli, 1 * kMilli});
  counts.asked(210 * kMilli);
  counts.given(215 * kMilli, 0, 0);
  counts.asked(216 * kMilli);  // the time before is not counted
  counts.given(230 * kMilli, 1, 10);
  const ConsumerFigures& figures = counts.figures();
  EXPECT_EQ(figures.first_ns, 200 * kMilli);
  EXPECT_EQ(figures.last_ns, 230 * kMilli);
  EXPECT_EQ(figures.busy_ns, 10 * kMilli);
  EXPECT_EQ(figures.wait_ns, 5 * kMilli + 14 * kMilli);
  EXPECT_EQ(figures.delivered, 2U);
  EXPECT_EQ(figures.samples, 4U);
  EXPECT_EQ(figures.bytes, 40U);
  EXPECT_EQ(counts.ages().count(), 3U);
  EXPECT_EQ(counts.ages().longest_ns(), 4 * kMilli);
  const auto trace = counts.trace();
  ASSERT_EQ(trace.size(), 3U);
  EXPECT_EQ(trace[0].kind, TraceKind::kConsumerBusy);
  EXPECT_EQ(trace[1].kind, TraceKind::kConsumerWait);
}

TEST(LiveCounts, sizes_are_counted_by_powers_of_two) {
  LiveCounts counts;
  uint64_t now = 1;
  for (const uint64_t messages : {1, 2, 3, 4, 7, 8, 1 << 30}) {
    counts.asked(now++);
    counts.given(now++, messages, 0);
  }
  BatchSizes wanted{};
  wanted[0] = wanted[3] = wanted.back() = 1;
  wanted[1] = wanted[2] = 2;
  EXPECT_EQ(counts.batch_sizes(), wanted);
  EXPECT_EQ(counts.largest_batch(), uint64_t{1} << 30);
}

TEST(LiveCounts, the_history_covers_a_run_of_any_length_and_loses_no_message) {
  LiveCounts counts;
  constexpr uint64_t kBatches = 300'000;
  uint64_t sum = 0;
  for (uint64_t i = 1; i <= kBatches; ++i) {
    counts.asked(i * 7 * kMilli);
    counts.given(i * 7 * kMilli, i % 13 + 1, 0);
    counts.predicted(std::array{i});
    sum += i % 13 + 1;
  }
  const auto& history = counts.history();
  EXPECT_LE(history.size(), LiveCounts::kCapacity);
  EXPECT_GE(history.size(), LiveCounts::kCapacity / 4);
  EXPECT_EQ(history.front().begin_ns, 7 * kMilli);
  EXPECT_EQ(history.back().end_ns, kBatches * 7 * kMilli);
  LiveInterval all;
  for (size_t i = 0; i < history.size(); ++i) {
    all.batches += history[i].batches;
    all.messages += history[i].messages;
    all.sum_age_ns += history[i].sum_age_ns;
    EXPECT_LE(history[i].largest_batch, 13U);
    EXPECT_LE(history[i].begin_ns, history[i].end_ns);
    if (i > 0) {
      EXPECT_GT(history[i].begin_ns, history[i - 1].end_ns);
      EXPECT_GT(history[i].longest_age_ns, history[i - 1].longest_age_ns);
    }
  }
  EXPECT_EQ(all.batches, kBatches);
  EXPECT_EQ(all.messages, sum);
  EXPECT_EQ(all.sum_age_ns, kBatches * (kBatches + 1) / 2);
}

// A second of batches of `messages`, each after a wait and a step.
Snapshot live_snapshot(uint64_t messages, uint64_t wait_ms, uint64_t step_ms) {
  LiveCounts counts;
  for (uint64_t now = 1000; now < 2000; now += wait_ms + step_ms) {
    counts.asked(now * kMilli);
    counts.given((now + wait_ms) * kMilli, messages, 8 * messages);
    counts.predicted(std::array{step_ms * kMilli});
  }
  Snapshot snapshot;
  snapshot.title = "sensors";
  snapshot.mode = "live";
  snapshot.batch_size = 64;
  snapshot.consumer = counts.figures();
  snapshot.consumer_trace = counts.trace();
  snapshot.live = LiveSnapshot{.received = snapshot.consumer.samples,
                               .ages = counts.ages(),
                               .batch_sizes = counts.batch_sizes(),
                               .largest_batch = counts.largest_batch(),
                               .history = counts.history()};
  return snapshot;
}

TEST(LiveAnalysis, a_model_that_waits_or_whose_batches_can_grow_keeps_up) {
  for (const auto& [wait, bottleneck] :
       {std::pair{8, Bottleneck::kSource}, std::pair{0, Bottleneck::kBalanced}}) {
    const Analysis a = analyse(live_snapshot(10, wait, 2));
    EXPECT_EQ(a.bottleneck, bottleneck);
    EXPECT_NE(a.verdict.find("keeps up with the stream"), std::string::npos) << a.verdict;
    EXPECT_NE(a.verdict.find("within 2.00 ms"), std::string::npos) << a.verdict;
    EXPECT_TRUE(a.recommendations.empty());
  }
  Snapshot empty;
  empty.live = LiveSnapshot{};
  const Analysis none = analyse(empty);
  EXPECT_EQ(none.verdict, "No message has been trained on.");
}

TEST(LiveAnalysis, full_batches_without_a_wait_or_dropped_messages_are_the_training_step) {
  const Analysis full = analyse(live_snapshot(64, 0, 10));
  EXPECT_EQ(full.bottleneck, Bottleneck::kConsumer);
  EXPECT_NE(full.verdict.find("the training step is the bottleneck"), std::string::npos);
  ASSERT_EQ(full.recommendations.size(), 2U);
  EXPECT_EQ(full.recommendations[0].find("Raise max_batch"), 0U);

  Snapshot snapshot = live_snapshot(10, 8, 2);
  snapshot.live->dropped = snapshot.live->received / 4;
  const Analysis dropped = analyse(snapshot);
  EXPECT_EQ(dropped.bottleneck, Bottleneck::kConsumer);
  EXPECT_NE(dropped.verdict.find("25 % of them were dropped"), std::string::npos);
  EXPECT_EQ(dropped.recommendations.size(), 1U);
}

TEST(LiveReport, has_counts_sizes_and_the_history) {
  const std::string html = report_html(live_snapshot(10, 8, 2));
  for (const char* part :
       {R"("largest_batch":10)", R"("sizes":[[8,100]])", R"("age_p50":2000.0)",
        R"("history":[[0.0,0.0,1,10,10,200.0,2000.0],[10000.0,)", R"("title":"sensors")"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace penstock
