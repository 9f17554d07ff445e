#include "penstock/observe/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sample_snapshot.h"

namespace penstock {
namespace {

bool says(const Analysis& analysis, const std::string& text) {
  return std::any_of(analysis.recommendations.begin(), analysis.recommendations.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

TEST(Analysis, nothing_run_gives_no_verdict_and_no_division_by_zero) {
  const Analysis a = analyse(Snapshot{});
  EXPECT_EQ(a.bottleneck, Bottleneck::kUnknown);
  EXPECT_EQ(a.batches_per_second, 0);
  EXPECT_EQ(a.wait_share, 0);
  EXPECT_EQ(a.workers_enough, 0U);
  EXPECT_TRUE(a.recommendations.empty());
}

TEST(Analysis, a_slow_dataset_is_user_code_and_says_how_many_workers_would_keep_up) {
  const Snapshot snapshot = sample_snapshot(2, 12.1, 4);
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kUser);
  EXPECT_NEAR(a.wait_share, 1 - 4 / 6.05, 0.001);
  EXPECT_NEAR(a.work_ms, 12.12, 0.001);
  EXPECT_NEAR(a.step_ms, 4, 0.001);
  EXPECT_EQ(a.workers_enough, 4U);
  EXPECT_NE(a.verdict.find("34 %"), std::string::npos) << a.verdict;
  EXPECT_NE(a.verdict.find("12.1 ms per batch over 2 workers"), std::string::npos) << a.verdict;
  EXPECT_TRUE(says(a, "Use 4 workers instead of 2, or make __getitem__ cheaper"));
}

TEST(Analysis, where_each_core_has_a_worker_more_of_them_are_no_remedy) {
  Snapshot snapshot = sample_snapshot(2, 12.1, 4);
  snapshot.cores = 2;
  const Analysis a = analyse(snapshot);
  EXPECT_TRUE(says(a,
                   "Make __getitem__ cheaper: keeping up takes 4 workers, and this "
                   "machine has 2 cores. More workers than cores help only if they wait"));
  EXPECT_FALSE(says(a, "Use "));
}

TEST(Analysis, no_more_workers_than_cores_are_recommended_and_none_that_nobody_can_have) {
  Snapshot snapshot = sample_snapshot(1, 40, 1);
  snapshot.cores = 4;
  EXPECT_TRUE(says(analyse(snapshot),
                   "Use 4 workers instead of 1, one for each core, and make "
                   "__getitem__ cheaper: keeping up takes 41 workers"));
  snapshot = sample_snapshot(1, 400, 1);
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.workers_enough, 0U);
  EXPECT_TRUE(says(a, "use up to 4 workers, one for each core, or make __getitem__ cheaper"));
  EXPECT_FALSE(says(a, "401") || says(a, "400"));
  EXPECT_EQ(analyse(sample_snapshot(1, 255, 1)).workers_enough, kMaxLoaderWorkers);
  snapshot.mode = "inline";
  EXPECT_FALSE(says(analyse(snapshot), "401") || says(analyse(snapshot), "400"));
}

TEST(Analysis, a_slow_training_step_is_the_consumer_and_fewer_workers_would_do) {
  const Analysis a = analyse(sample_snapshot(4, 5, 50));
  EXPECT_EQ(a.bottleneck, Bottleneck::kConsumer);
  EXPECT_EQ(a.workers_enough, 1U);
  EXPECT_GT(a.wait_ticket_share, 0.9);
  EXPECT_NE(a.verdict.find("the training step is the bottleneck"), std::string::npos) << a.verdict;
  EXPECT_TRUE(says(a, "1 worker would do instead of 4"));
}

TEST(Analysis, the_wait_for_the_first_batch_says_nothing_about_those_that_followed) {
  Snapshot snapshot = sample_snapshot(2, 0.02, 10);
  snapshot.consumer.first_wait_ns = 150'000'000;
  snapshot.consumer.wait_ns += snapshot.consumer.first_wait_ns;
  const Analysis a = analyse(snapshot);
  EXPECT_GT(a.wait_share, 0.05);
  EXPECT_LT(a.steady_wait_share, 0.01);
  EXPECT_EQ(a.bottleneck, Bottleneck::kConsumer);
  EXPECT_NE(a.verdict.find("of the time after the first batch: the training step is the bottle"),
            std::string::npos)
      << a.verdict;
  EXPECT_FALSE(says(a, "stream"));
  // If the rest of the run was very short, the first wait counts.
  snapshot.consumer.busy_ns = 1'000'000;
  EXPECT_EQ(analyse(snapshot).steady_wait_share, analyse(snapshot).wait_share);
  EXPECT_NE(analyse(snapshot).bottleneck, Bottleneck::kConsumer);
}

TEST(Analysis, idle_workers_and_a_step_that_takes_most_are_no_stream_if_there_is_none) {
  Snapshot snapshot = sample_snapshot(2, 0.5, 10);
  snapshot.consumer.wait_ns = snapshot.consumer.busy_ns / 8;
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kConsumer);
  EXPECT_FALSE(says(a, "stream") || says(a, "generator"));
  snapshot.pulled = true;
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
  EXPECT_TRUE(says(analyse(snapshot), "Only one worker at a time can advance a generator"));
  Snapshot slow = sample_snapshot(1, 12, 4);
  slow.pulled = true;
  EXPECT_EQ(analyse(slow).bottleneck, Bottleneck::kUser);
  EXPECT_TRUE(says(analyse(slow), "Only one worker at a time can advance a generator"));
  EXPECT_FALSE(says(analyse(slow), "Use "));
  snapshot.pulled = false;
  snapshot.consumer.wait_ns = 2 * snapshot.consumer.busy_ns;
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
  EXPECT_FALSE(says(analyse(snapshot), "stream") || says(analyse(snapshot), "generator"));
}

TEST(Analysis, both_sides_busy_is_balanced) {
  const Analysis a = analyse(sample_snapshot(2, 10, 5.05));
  EXPECT_EQ(a.bottleneck, Bottleneck::kBalanced);
}

TEST(Analysis, time_in_copies_is_the_hand_over) {
  Snapshot snapshot = sample_snapshot(2, 12, 1);
  std::swap(snapshot.stages[0].ns, snapshot.stages[1].ns);
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kHandOver);
  EXPECT_NEAR(a.hand_over_share, 12 / 12.02, 0.001);
}

TEST(Analysis, workers_without_room_while_the_model_waits_is_memory) {
  Snapshot snapshot = sample_snapshot(2, 12, 1);
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.wait_slot_ns = 3 * worker.figures.busy_ns;
  }
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kMemory);
  EXPECT_TRUE(says(a, "Raise max_bytes"));
}

TEST(Analysis, fewer_batches_than_workers_for_their_bytes_is_memory) {
  Snapshot snapshot = sample_snapshot(4, 12, 1);
  snapshot.consumer.bytes = 1000 * snapshot.consumer.delivered;
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.wait_ticket_ns = 3 * worker.figures.busy_ns;
  }
  snapshot.max_bytes = 4000;
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
  snapshot.max_bytes = 1999;
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kMemory);
  EXPECT_NE(a.verdict.find("than there are workers, only 1."), std::string::npos) << a.verdict;
  EXPECT_TRUE(says(a, "Raise max_bytes"));
  Snapshot behind = snapshot;  // the thread that reads the stream
  behind.stream_stages = {
      {"generator(src)", behind.consumer.last_ns - behind.consumer.first_ns, 1}};
  EXPECT_EQ(analyse(behind).bottleneck, Bottleneck::kStream);
  snapshot.active_workers = 1;  // the others are parked
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
}

TEST(Analysis, idle_workers_while_the_model_waits_is_the_source) {
  Snapshot snapshot = sample_snapshot(2, 12, 1);
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.wait_ticket_ns = 3 * worker.figures.busy_ns;
  }
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
  snapshot.queue_size = 1;
  EXPECT_TRUE(says(analyse(snapshot), "max_queue_size is 1, less than the 2 workers"));
}

TEST(Analysis, where_a_batch_costs_less_than_handing_it_over_workers_are_no_remedy) {
  Snapshot snapshot = sample_snapshot(2, 0.008, 0.001);
  for (WorkerSnapshot& worker : snapshot.workers) worker.figures.busy_ns -= kHandOverNs * 100;
  snapshot.stages.clear();
  for (uint64_t idle : {0, 30}) {  // both when they are busy and when they wait for each other
    for (WorkerSnapshot& worker : snapshot.workers) {
      worker.figures.wait_ticket_ns = idle * worker.figures.busy_ns;
    }
    for (uint64_t batch_size : {0, 1}) {
      snapshot.batch_size = batch_size;
      const Analysis a = analyse(snapshot);
      EXPECT_EQ(a.bottleneck, Bottleneck::kTooSmall);
      EXPECT_NE(a.verdict.find("8.0 us, less than it takes to hand one over"), std::string::npos);
      EXPECT_TRUE(says(a, batch_size == 0 ? "let an item be many samples" : "a larger batch_size"));
      EXPECT_TRUE(says(a, "workers=0 may be faster"));
      EXPECT_FALSE(says(a, "Use ") || says(a, "stream"));
    }
  }
  snapshot.mode = "inline";  // without hand-over
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kUser);
  EXPECT_TRUE(says(analyse(snapshot), "workers would cost more than they gain"));
  // Something else is slow, such as the generator that the workers wait for.
  snapshot.mode = "threads";
  snapshot.consumer.wait_ns = snapshot.consumer.delivered * 5'000'000;
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
  // The model never waits, so small items do not matter.
  EXPECT_EQ(analyse(sample_snapshot(2, 0.008, 50)).bottleneck, Bottleneck::kConsumer);
}

TEST(Analysis, of_a_chain_the_slowest_stage_is_named_and_what_to_do_about_it) {
  Snapshot snapshot = sample_snapshot(2, 12.1, 4);
  snapshot.stages = {{"tfrecord(train)", 400'000'000, 12'800},
                     {"map(decode)", 1'800'000'000, 12'800},
                     {"batch(64)", 200'000'000, 12'800}};
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kUser);
  EXPECT_NE(a.verdict.find("the stage map(decode) takes 75 % of the workers' time"),
            std::string::npos)
      << a.verdict;
  EXPECT_TRUE(says(a, "Use 4 workers instead of 2, or make map(decode) cheaper"));
  ASSERT_EQ(a.chain.size(), 3U);
  EXPECT_NEAR(a.chain[0].share + a.chain[1].share + a.chain[2].share, 1, 1e-9);
  EXPECT_NEAR(a.chain[1].per_batch_ms, 9, 1e-6);
  snapshot.mode = "inline";
  EXPECT_NE(analyse(snapshot).verdict.find("75 % of that is the stage map(decode)"),
            std::string::npos);
}

TEST(Analysis, idle_workers_behind_a_busy_stream_name_its_slowest_stage) {
  Snapshot snapshot = sample_snapshot(2, 12, 1);
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.wait_ticket_ns = 3 * worker.figures.busy_ns;
  }
  const uint64_t all = snapshot.consumer.last_ns - snapshot.consumer.first_ns;
  snapshot.stream_stages = {{"generator(read)", all / 20, 100}, {"filter(good)", all * 8 / 10, 60}};
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kStream);
  EXPECT_NE(a.verdict.find("the stage filter(good) takes 94 %"), std::string::npos) << a.verdict;
  EXPECT_TRUE(says(a, "Make filter(good) cheaper"));
  // Even with so few workers that they are rarely idle.
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.wait_ticket_ns = worker.figures.busy_ns / 2;
  }
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kStream);
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.wait_ticket_ns = 3 * worker.figures.busy_ns;
  }
  // A stage that is mostly idle is not the bottleneck.
  snapshot.stream_stages[1].ns = all / 10;
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kSource);
}

TEST(Analysis, of_a_slow_stage_of_a_stream_it_is_said_where_its_work_could_be_done) {
  Snapshot snapshot = sample_snapshot(2, 1, 1);
  snapshot.consumer.wait_ns = 9 * snapshot.consumer.busy_ns;
  snapshot.consumer.last_ns = snapshot.consumer.first_ns + 10 * snapshot.consumer.busy_ns;
  for (WorkerSnapshot& worker : snapshot.workers) worker.figures.wait_ticket_ns *= 20;
  const auto advice = [&](const std::string& name) {
    snapshot.stream_stages = {{"range(0, 9)", 1'000, 100},
                              {name, 9 * snapshot.consumer.busy_ns, 100}};
    const Analysis a = analyse(snapshot);
    EXPECT_EQ(a.bottleneck, Bottleneck::kStream) << name;
    EXPECT_NE(a.verdict.find("the stage " + name + " takes 100 % of its time"), std::string::npos)
        << a.verdict;
    return a.recommendations.front();
  };
  for (const char* judge : {"filter(f)", "take_while(f)", "unique(f)"}) {
    EXPECT_NE(advice(judge).find("into a map before it, which runs in the workers"),
              std::string::npos);
  }
  EXPECT_NE(advice("generator(f)").find("a length and __getitem__"), std::string::npos);
  EXPECT_NE(advice("tfrecord(f)").find("no worker can help"), std::string::npos);
  EXPECT_NE(advice("scan(f)").find("into a map after it, which runs in the workers"),
            std::string::npos);
}

TEST(Analysis, in_line_the_stream_is_part_of_the_work) {
  Snapshot snapshot = sample_snapshot(1, 0.0023, 0.01);
  snapshot.mode = "inline";
  snapshot.stages = {{"batch(8)", 400'000, 1'600}};
  snapshot.stream_stages = {{"range(0, 3000)", 600'000, 1'600},
                            {"filter(f)", 1'600'000'000, 1'600}};
  snapshot.consumer.wait_ns = 1'602'000'000;
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kUser);
  EXPECT_NEAR(a.work_ms, 8, 0.1);
  EXPECT_NE(a.verdict.find("100 % of that is the stage filter(f)"), std::string::npos) << a.verdict;
  EXPECT_TRUE(says(a, "Make filter(f) cheaper, or move expensive work into a map before it"));
  EXPECT_TRUE(says(a, "Use workers"));
  EXPECT_FALSE(says(a, "cost more than they gain"));
  // A much longer training step is the bottleneck.
  snapshot.consumer.busy_ns = 100 * snapshot.consumer.wait_ns;
  EXPECT_EQ(analyse(snapshot).bottleneck, Bottleneck::kConsumer);
  EXPECT_EQ(analyse(snapshot).verdict.find("worker"), std::string::npos);
}

TEST(Analysis, in_line_work_recommends_workers) {
  Snapshot snapshot = sample_snapshot(1, 12, 12);
  snapshot.mode = "inline";
  snapshot.consumer.wait_ns = snapshot.workers[0].figures.busy_ns;
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.bottleneck, Bottleneck::kUser);
  EXPECT_TRUE(says(a, "Use 2 workers, or make __getitem__ cheaper"));
}

TEST(Analysis, a_consumer_that_does_nothing_has_no_number_of_workers) {
  const Analysis a = analyse(sample_snapshot(2, 12, 0));
  EXPECT_EQ(a.workers_enough, 0U);
  EXPECT_TRUE(says(a, "the rate at which batches can be made"));
}

TEST(Analysis, several_tickets_per_batch_count_as_one_batch) {
  Snapshot snapshot = sample_snapshot(2, 12, 4);
  snapshot.batch_size = 64;
  const double work_ms = analyse(snapshot).work_ms;
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.tickets *= 8;  // the same samples in the same time
  }
  EXPECT_DOUBLE_EQ(analyse(snapshot).work_ms, work_ms);
}

TEST(Analysis, copies_are_named_with_their_cause_and_remedy) {
  Snapshot snapshot = sample_snapshot(2, 12, 4);
  for (WorkerSnapshot& worker : snapshot.workers) {
    WorkerFigures& w = worker.figures;
    w.copies[static_cast<size_t>(CopyReason::kNotOwned)] = w.copies_avoided;
    w.bytes_copied[static_cast<size_t>(CopyReason::kNotOwned)] = w.bytes_avoided;
    w.copies_avoided = w.bytes_avoided = 0;
  }
  const Analysis a = analyse(snapshot);
  EXPECT_EQ(a.avoided_share, 0);
  EXPECT_TRUE(says(a, "Copies: 100 % of the arrays"));
  EXPECT_TRUE(says(a, "return a new array to avoid the copy"));
}

TEST(Analysis, the_due_write_of_a_row_is_no_reproach) {
  Snapshot snapshot = sample_snapshot(2, 12, 4);
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.figures.copies[static_cast<size_t>(CopyReason::kRow)] = 1'000'000;
    worker.figures.bytes_copied[static_cast<size_t>(CopyReason::kRow)] = UINT64_C(1) << 40;
  }
  const Analysis a = analyse(snapshot);
  EXPECT_FALSE(says(a, "Copies"));
  EXPECT_EQ(a.avoided_share, 1);
}

TEST(Analysis, deaths_and_losses_are_said) {
  Snapshot snapshot = sample_snapshot(2, 12, 4);
  EXPECT_FALSE(says(analyse(snapshot), "replaced"));
  snapshot.consumer.restarts = 3;
  snapshot.consumer.skipped = 2;
  snapshot.consumer.timeouts = 1;
  const Analysis a = analyse(snapshot);
  EXPECT_TRUE(says(a, "3 workers were replaced after dying"));
  EXPECT_TRUE(says(a, "Errors cost 2 samples (2 skipped, 0 replaced)"));
  EXPECT_TRUE(says(a, "1 ticket took longer than the timeout"));
}

TEST(Analysis, shares_of_each_side_add_up_to_one) {
  const Analysis a = analyse(sample_snapshot(3, 7, 2));
  double workers = 0;
  for (const StageTime& stage : a.worker_stages) {
    workers += stage.share;
  }
  EXPECT_NEAR(workers, 1, 1e-9);
  EXPECT_NEAR(a.consumer_stages[0].share + a.consumer_stages[1].share, 1, 1e-9);
}

}  // namespace
}  // namespace penstock
