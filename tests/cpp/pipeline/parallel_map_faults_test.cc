// Failures before stages of streams, in elements made by workers: as if the stream reader made
// them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "ops.h"
#include "parallel_map_chains.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock::test {
namespace {

class ParallelMapFaults : public ParallelMapWorkers {};
INSTANTIATE_TEST_SUITE_P(, ParallelMapFaults, ::testing::Values(1, 4));

OpRef failing() {
  return costly([](int64_t n, const Keys&, uint32_t) {
    if (n % 31 == 7) throw std::runtime_error("no " + std::to_string(n));
    return 3 * n;
  });
}

struct Seen {
  std::vector<std::string> batches;
  std::vector<std::string> errors;
  std::vector<std::string> losses;
  uint64_t skipped = 0, replaced = 0, batches_at_error = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};

Seen seen_of(const Dataset& dataset, const LoaderOptions& options) {
  Seen seen;
  Loader feed = dataset.build(options);
  for (bool over = false; !over;) {
    try {
      auto batch = feed.next();
      if (batch) seen.batches.push_back(text_of(*batch));
      over = !batch;
    } catch (const std::exception& error) {
      const auto failure = feed.failure();
      seen.errors.push_back(std::string(error.what()) + " in " + failure->stage + " at " +
                            std::to_string(failure->index));
      seen.batches_at_error = feed.state().batches;
      over = true;
    }
  }
  const LoaderStats stats = feed.stats();
  seen.skipped = stats.skipped;
  seen.replaced = stats.replaced;
  for (const LostItem& lost : stats.losses) {
    seen.losses.push_back(std::to_string(lost.epoch) + " " + std::to_string(lost.index) + " " +
                          lost.reason);
  }
  return seen;
}

TEST_P(ParallelMapFaults, failures_are_raised_left_out_and_replaced_as_a_stream_reader_does) {
  const Dataset numbers = Dataset::range(0, 130);
  const Dataset made = numbers.map(failing());
  const std::vector<Case> all{
      {"filter", made.filter(odd).batch(4)},
      {"elements", made.filter(odd)},
      {"skipped", made.on_error(OnError::kSkip).filter(odd).batch(4)},
      {"replaced", made.on_error(OnError::kReplace).filter(odd).batch(4)},
      {"batches", made.on_error(OnError::kSkip).batch(5).unbatch().batch(4)},
      {"tail", numbers.filter(odd).map(failing()).filter(not_of_three).batch(4)},
      {"stacked tail", numbers.filter(odd).map(failing()).batch(3).map(scaled).unbatch()},
      {"buffer", made.shuffle({.seed = 5, .buffer = 8}).batch(4)},
  };
  for (const auto& [name, dataset] : all) {
    SCOPED_TRACE(name);
    for (OnError policy : {OnError::kRaise, OnError::kSkip}) {
      LoaderOptions alone{.workers = 0}, workers = options();
      alone.on_error = workers.on_error = policy;
      const Seen expected = seen_of(dataset, alone), got = seen_of(dataset, workers);
      EXPECT_EQ(got.batches, expected.batches);
      EXPECT_EQ(got.errors, expected.errors);
      EXPECT_EQ(got.losses, expected.losses);
      EXPECT_EQ(got, expected);
    }
  }
}

// After a filter there are 65 odd numbers, two of which (7 and 69) fail in a function.
TEST_P(ParallelMapFaults, an_element_that_a_stream_lost_never_existed) {
  const Dataset lossy = Dataset::range(0, 130).filter(odd).map(failing());
  const Dataset sound = Dataset::range(0, 130)
                            .filter(odd)
                            .filter([](const Example& element, SampleContext&) {
                              return number_of(element) % 31 != 7;
                            })
                            .map(costly([](int64_t n, const Keys&, uint32_t) { return 3 * n; }));
  const auto all_of = [](const Dataset& stream) {
    return std::vector<Case>{
        {"take", stream.take(5)},
        {"skip", stream.skip(5)},
        {"batches", stream.batch(4)},
        {"batches taken", stream.batch(4).take(3)},
        {"numbered", stream.enumerate().batch(4)},
        {"zipped", Dataset::zip({stream, Dataset::range(0, 130)})},
        {"in turns", Dataset::interleave({stream, Dataset::range(0, 20)}, 2)},
        {"windows", stream.window({.size = 3, .shift = 2})},
    };
  };
  const std::vector<Case> expected = all_of(sound), all = all_of(lossy);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    LoaderOptions skip = options();
    skip.on_error = OnError::kSkip;
    const std::vector<std::string> batches = seen_of(expected[i].dataset, {.workers = 0}).batches;
    EXPECT_EQ(seen_of(all[i].dataset, skip).batches, batches);
    skip.workers = 0;
    EXPECT_EQ(seen_of(all[i].dataset, skip).batches, batches);
    EXPECT_EQ(seen_of(all[i].dataset.on_error(OnError::kSkip), options()).batches, batches);
  }
}

// Batches of five elements, four of which have lost one; a filter drops all batches, or half.
TEST_P(ParallelMapFaults, what_was_lost_on_the_way_to_what_a_filter_drops_counts) {
  const Dataset batches = Dataset::range(0, 130).map(failing()).on_error(OnError::kSkip).batch(5);
  auto none = [](const Example&, SampleContext&) { return false; };
  for (const Dataset& dataset : {batches.filter(none), batches.filter(odd)}) {
    for (uint32_t workers : {0u, GetParam()}) {
      Loader feed = dataset.build({.workers = workers});
      for (int pass = 1; pass < 3; ++pass) {
        (void)texts_of(feed);
        EXPECT_EQ(feed.stats().skipped, 4u * pass);
      }
    }
  }
}

// Streams pass elements on; the losses before an element are passed on with it, once.
TEST_P(ParallelMapFaults, what_was_lost_counts_once_through_streams) {
  const Dataset batches = Dataset::range(0, 130).map(failing()).on_error(OnError::kSkip).batch(5);
  const Dataset kept = batches.filter([](const Example&, SampleContext&) { return true; });
  const std::vector<std::pair<Dataset, uint64_t>> all{
      {kept, 4},
      {kept.concatenate(kept), 8},
      {kept.shuffle({.seed = 5, .buffer = 8}), 4},
      {kept.unbatch().batch(3), 4},
      {Dataset::zip({kept, kept}), 8},
      {Dataset::sample_from({kept, kept}, {.seed = 7}), 8},
      {kept.scan({{"sum", Tensor::make(DType::kInt64, {})}},
                 [](const Example& sum, const Example& batch) { return std::pair(sum, batch); }),
       4},
      {kept.bucket_by_length({.field = "", .boundaries = {5}, .batch_sizes = {2, 2}}), 4},
  };
  for (const auto& [dataset, lost] : all) {
    for (uint32_t workers : {0u, GetParam()}) {
      Loader feed = dataset.build({.workers = workers});
      (void)texts_of(feed);
      EXPECT_EQ(feed.stats().skipped, lost);
    }
  }
}

TEST_P(ParallelMapFaults, after_an_error_the_same_element_is_asked_for_again) {
  std::atomic<int> failures{0};
  Dataset dataset = Dataset::range(0, 100)
                        .map(costly([&](int64_t n, const Keys&, uint32_t) {
                          if (n == 31 && failures++ < 2) throw std::runtime_error("no 31");
                          return n;
                        }))
                        .filter(odd)
                        .batch(4);
  Loader feed = dataset.build(options());
  for (int i = 0; i < 3; ++i) (void)*feed.next();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW((void)feed.next(), std::runtime_error);
    EXPECT_EQ(feed.state().batches, 3u);
  }
  EXPECT_EQ(text_of(*feed.next()), "[4 ]25 27 29 31 ");
}

TEST_P(ParallelMapFaults, retries_are_the_workers_own) {
  std::atomic<int> tries{0};
  Dataset dataset = Dataset::range(0, 10)
                        .map([&](const Example& element, SampleContext&) {
                          if (number_of(element) == 5 && tries++ < 3) {
                            throw std::runtime_error("not yet");
                          }
                          return element;
                        })
                        .filter(odd)
                        .batch(5);
  LoaderOptions patient = options();
  patient.retries = 3;
  Loader feed = dataset.build(patient);
  EXPECT_EQ(text_of(*feed.next()), "[5 ]1 3 5 7 9 ");
  EXPECT_EQ(feed.stats().retried, 3u);
}

TEST_P(ParallelMapFaults, what_takes_too_long_in_front_of_a_filter_times_out) {
  struct Stuck {
    std::mutex mutex;
    std::condition_variable go;
    bool free = false;
  };
  auto stuck = std::make_shared<Stuck>();
  Dataset numbers = Dataset::range(0, 100).map([stuck](const Example& element, SampleContext&) {
    if (number_of(element) == 9) {
      std::unique_lock lock(stuck->mutex);
      stuck->go.wait(lock, [&] { return stuck->free; });
    }
    return element;
  });
  Dataset dataset = numbers.filter(odd).batch(2);
  Dataset forgiving = numbers.on_error(OnError::kSkip).filter(odd).batch(2);
  LoaderOptions hasty = options();
  hasty.timeout = std::chrono::milliseconds(100);
  {
    Loader feed = dataset.build(hasty);
    (void)*feed.next();
    (void)*feed.next();
    try {
      (void)feed.next();
      ADD_FAILURE() << "9 came";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    }
    EXPECT_EQ(feed.failure()->index, 9u);
    EXPECT_EQ(feed.state().batches, 2u);
  }
  {
    LoaderOptions skip = hasty;
    skip.on_error = OnError::kSkip;
    Loader feed = dataset.build(skip);
    EXPECT_EQ(texts_of(feed).size(), 25u);  // 49 elements
    EXPECT_EQ(feed.stats().skipped, 1u);
  }
  {
    // A policy in the chain, after the function, has the same effect.
    Loader feed = forgiving.build(hasty);
    EXPECT_EQ(texts_of(feed).size(), 25u);
    EXPECT_EQ(feed.stats().skipped, 1u);
  }
  std::lock_guard lock(stuck->mutex);
  stuck->free = true;
  stuck->go.notify_all();
}

}  // namespace
}  // namespace penstock::test
