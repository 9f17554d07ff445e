#include "penstock/train/hogwild.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/train/relaxed.h"
#include "tests/cpp/train/hogwild_steps.h"
#include "tests/cpp/train/optimizers.h"

namespace penstock::train {
namespace {

using testing::all_optimizers;
using testing::fill;
using testing::same_bits;

Layout a_long_layout() { return Layout{{"w", {37, 3}}, {"scalar", {}}, {"b", {3}}}; }

// Steps without gradients: `step` is called with the worker until it returns false.
Hogwild::MakeStep each(std::function<bool(HogwildWorker&)> step) {
  return [step](HogwildWorker& worker) -> Hogwild::Step {
    return [step, &worker] { return step(worker); };
  };
}

TEST(Relaxed, an_update_has_the_bits_of_the_plain_one_wherever_it_begins_and_ends) {
  constexpr size_t kLength = 2100;  // more than the prefetch distance
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Optimizer& optimizer : all_optimizers({.weight_decay = 0.01, .clip_value = 1.5})) {
    for (size_t first : {0, 1, 2, 3, 8}) {
      for (size_t n : {0, 1, 2, 7, 16, 511, 512, 513, 1300, 2090}) {
        for (int which : {0, 1, 2}) {
          const bool shares = which > 0;
          const size_t state = first + (which == 2 ? 1 : 0);  // another alignment
          std::vector<float> g(kLength), w(kLength), s0(kLength), s1(kLength);
          for (auto* values : {&g, &w, &s0, &s1}) {
            for (float& x : *values) x = std::abs(normal(random));
          }
          auto w2 = w, s02 = s0, s12 = s1;
          const kernels::Pass pass = optimizer.pass(3, 0.5, 1);
          kernels::update(pass, w.data() + first, g.data() + first, s0.data() + state,
                          s1.data() + state, n);
          std::vector<float> copy(n + 1, -1);
          relaxed::update(pass, w2.data() + first, g.data() + first, s02.data() + state,
                          s12.data() + state, n, shares, which == 0 ? nullptr : copy.data());
          for (size_t i = 0; i <= n; ++i) {
            ASSERT_EQ(copy[i], which == 0 || i == n ? -1 : w2[first + i]) << first << " " << n;
          }
          ASSERT_EQ(std::memcmp(w.data(), w2.data(), kLength * sizeof(float)), 0)
              << optimizer.name() << " " << first << " " << n;
          ASSERT_EQ(std::memcmp(s0.data(), s02.data(), kLength * sizeof(float)), 0);
          ASSERT_EQ(std::memcmp(s1.data(), s12.data(), kLength * sizeof(float)), 0);
        }
      }
    }
  }
}

TEST(Relaxed, a_copy_is_one) {
  std::vector<float> from(100);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  for (size_t first : {0, 1, 2}) {
    for (size_t n : {0, 1, 2, 5, 98}) {
      std::vector<float> to(n, -1);
      relaxed::read(from.data() + first, to);
      EXPECT_TRUE(std::equal(to.begin(), to.end(), from.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
}

TEST(SharedCounters, staleness_has_a_bucket_for_every_number) {
  for (uint64_t s = 0; s < 32; ++s)
    EXPECT_EQ(SharedCounters::bucket_min(SharedCounters::bucket(s)), s);
  EXPECT_EQ(SharedCounters::bucket_min(SharedCounters::bucket(32)), 32u);
  EXPECT_EQ(SharedCounters::bucket_min(SharedCounters::bucket(63)), 32u);
  EXPECT_EQ(SharedCounters::bucket_min(SharedCounters::bucket(64)), 64u);
  EXPECT_EQ(SharedCounters::bucket(UINT64_MAX), SharedCounters::kBuckets - 1);
}

TEST(SharedCounters, a_shared_one_is_the_same_through_its_descriptor) {
  const SharedCounters counters = SharedCounters::make(3, true);
  const SharedCounters other = SharedCounters::open(counters.fd());
  EXPECT_EQ(other.workers(), 3u);
  counters.begin(2, 7);
  EXPECT_TRUE(other.claim_step());
  EXPECT_TRUE(counters.claim_step());
  EXPECT_FALSE(other.claim_step());
  other.return_step();
  EXPECT_TRUE(counters.claim_step());
  other.note_applied(2, 5, 40);
  EXPECT_EQ(counters.counts(2).applied, 5u);
  EXPECT_EQ(counters.counts(2).staleness[SharedCounters::bucket(40)], 1u);
  EXPECT_EQ(counters.add_updates(1), 7u);
  other.stop();
  EXPECT_TRUE(counters.stopped());
  const Slab slab = Slab::make(a_long_layout(), Slab::Kind::kShared);
  EXPECT_THROW(SharedCounters::open(slab.fd()), Error);
}

TEST(SharedCounters, a_worker_that_crashes_does_not_change_how_many_there_are) {
  const SharedCounters counters = SharedCounters::make(3, true);
  const SharedCounters other = SharedCounters::open(counters.fd());
  constexpr off_t kWorkersAt = 8;  // after the magic
  const uint64_t many = uint64_t{1} << 40;
  ASSERT_EQ(pwrite(counters.fd(), &many, sizeof many, kWorkersAt),
            static_cast<ssize_t>(sizeof many));
  EXPECT_EQ(counters.workers(), 3u);
  EXPECT_EQ(other.workers(), 3u);
  EXPECT_THROW(SharedCounters::open(counters.fd()), Error);
}

TEST(SharedCounters, a_file_that_can_shrink_is_refused) {
  const SharedCounters counters = SharedCounters::make(3, true);
  std::vector<char> bytes(os::page_size());
  ASSERT_EQ(pread(counters.fd(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  const os::Fd sealed = os::memory_file("sealed"), other(memfd_create("other", MFD_CLOEXEC));
  for (int fd : {sealed.get(), other.get()}) {
    ASSERT_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  EXPECT_EQ(SharedCounters::open(sealed.get()).workers(), 3u);
  EXPECT_NE(ftruncate(sealed.get(), 0), 0);
  EXPECT_THROW(SharedCounters::open(other.get()), Error);
}

TEST(Hogwild, one_worker_gives_the_bits_of_an_updater) {
  for (const Optimizer& optimizer : all_optimizers({.weight_decay = 0.01, .clip_value = 1.5})) {
    for (const auto& [own_state, snapshots] : {std::pair{false, Snapshots::kNone},
                                               {true, Snapshots::kNone},
                                               {true, Snapshots::kStep},
                                               {false, Snapshots::kUpdate}}) {
      Updater serial(Parameters(a_long_layout()), optimizer),
          updater(Parameters(a_long_layout()), optimizer);
      fill(serial.parameters().slab(), 5);
      fill(updater.parameters().slab(), 5);
      Hogwild hogwild(updater, 1, {.own_state = own_state, .snapshots = snapshots});
      const Slab gradients = updater.parameters().gradients();
      std::mt19937 random(3);
      for (uint32_t step = 0; step < 20; ++step) {
        fill(gradients, step);
        serial.apply(gradients, 0.5);
        const std::vector<int64_t> rows{static_cast<int64_t>(random() % 37), 3, 3};
        const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8, 9};
        serial.apply_rows("w", rows, values);
        const GradientPart part{"w", values, true, rows};
        bool zeroed = false, seen = true;
        const auto read = [&](HogwildWorker& worker) {
          worker.read();
          seen &= same_bits(worker.weights().slab(), worker.parameters().slab());
        };
        const auto report = hogwild.run(each([&](HogwildWorker& worker) {
                                          read(worker);
                                          worker.apply(gradients, 0.5);
                                          zeroed = gradients.values()[0] == 0;
                                          read(worker);
                                          worker.apply(std::span(&part, 1));
                                          read(worker);
                                          return true;
                                        }),
                                        {.steps = 1});
        EXPECT_TRUE(zeroed);
        EXPECT_TRUE(seen);
        EXPECT_EQ(report.steps, 1u);
        EXPECT_EQ(report.updates, 2u);
      }
      EXPECT_TRUE(same_bits(serial.parameters().slab(), updater.parameters().slab()));
      for (size_t i = 0; i < serial.state().size(); ++i) {
        EXPECT_TRUE(same_bits(serial.state()[i], updater.state()[i]));
      }
      EXPECT_EQ(updater.step(), serial.step());
      EXPECT_EQ(updater.parameters().version(), serial.parameters().version());
    }
  }
}

TEST(Hogwild, workers_that_touch_rows_of_their_own_lose_nothing) {
  constexpr size_t kWorkers = 4, kSteps = 500;
  Updater updater(Parameters(Layout{{"w", {kWorkers, 5}}}), Optimizer::sgd(1.0));
  Hogwild hogwild(updater, kWorkers);
  const auto report = hogwild.run([](HogwildWorker& worker) -> Hogwild::Step {
    return [&worker, left = kSteps]() mutable {
      if (left-- == 0) return false;
      const int64_t row = static_cast<int64_t>(worker.number());
      const float ones[] = {-1, -1, -1, -1, -1};
      const GradientPart part{"w", ones, true, std::span(&row, 1)};
      worker.read();
      return worker.apply(std::span(&part, 1));
    };
  });
  for (float x : updater.parameters().at("w").as_span<float>()) EXPECT_EQ(x, kSteps);
  EXPECT_EQ(report.updates, kWorkers * kSteps);
  EXPECT_EQ(report.steps, kWorkers * kSteps);
  uint64_t counted = 0;
  for (const auto& [least, count] : report.staleness) counted += count;
  EXPECT_EQ(counted, report.updates);
  EXPECT_EQ(updater.step(), report.updates);
}

TEST(Hogwild, dense_updates_read_and_write_the_same_floats_without_a_race) {
  Updater updater(Parameters(Layout{{"w", {1000}}}), Optimizer::momentum(0.1, 0.5, {}));
  Hogwild hogwild(updater, 3, {.snapshots = Snapshots::kUpdate});
  const auto report = hogwild.run(testing::drawn_to_two, {.steps = 600});
  EXPECT_EQ(report.steps, 600u);
  for (float x : updater.parameters().at("w").as_span<float>()) EXPECT_NEAR(x, 2, 0.01);
}

TEST(Hogwild, sparse_steps_of_their_own_are_counted) {
  Updater updater(Parameters(Layout{{"w", {64}}}), Optimizer::sgd(1.0));
  Hogwild hogwild(updater, 2);
  const auto report = hogwild.run(
      each([](HogwildWorker& worker) {
        float* weights = worker.parameters().slab().values().data();
        const std::vector<int32_t> at{static_cast<int32_t>(worker.number()), 40};
        const std::vector<float> ones{1, 1};
        worker.read();
        for (int i = 0; i < 10; ++i) {
          const float before = relaxed::dot(weights, std::span(at).first(1), ones.data());
          relaxed::add(weights, at, ones.data(), 1.0f);
          EXPECT_EQ(relaxed::load(weights[at[0]]), before + 1);
        }
        worker.count(10);
        return true;
      }),
      {.steps = 200});
  EXPECT_EQ(report.steps, 200u);
  EXPECT_EQ(report.updates, 2000u);
  const auto w = updater.parameters().at("w").as_span<float>();
  EXPECT_EQ(w[0] + w[1], 2000);
  EXPECT_LE(w[40], 2000);
}

TEST(Hogwild, staleness_counts_updates_of_others_between_read_and_write) {
  Updater updater(Parameters(Layout{{"w", {4}}}), Optimizer::sgd(1.0));
  Hogwild hogwild(updater, 2);
  std::mutex mutex;
  std::condition_variable changed;
  bool has_read = false, written = false;
  const auto report = hogwild.run([&](HogwildWorker& worker) -> Hogwild::Step {
    return [&, gradients = worker.parameters().gradients(),
            left = worker.number() == 0 ? 1 : 5]() mutable {
      if (left-- == 0) return false;
      worker.read();
      std::unique_lock lock(mutex);
      if (worker.number() == 0) {
        has_read = true;
        changed.notify_all();
        changed.wait(lock, [&] { return written; });
      } else {
        changed.wait(lock, [&] { return has_read; });
      }
      lock.unlock();
      worker.apply(gradients);
      if (worker.number() == 1 && left == 0) {
        lock.lock();
        written = true;
        changed.notify_all();
      }
      return true;
    };
  });
  const std::vector<std::pair<uint64_t, uint64_t>> expected{{0, 5}, {5, 1}};
  EXPECT_EQ(report.staleness, expected);
}

TEST(Hogwild, an_exception_stops_all_and_is_thrown) {
  Updater updater(Parameters(Layout{{"w", {4}}}), Optimizer::sgd(1.0));
  Hogwild hogwild(updater, 3);
  const auto run = [&] {
    hogwild.run([&](HogwildWorker& worker) -> Hogwild::Step {
      return [&worker, step = 0]() mutable {
        if (worker.number() == 1 && step == 7) throw std::runtime_error("of mine");
        ++step;
        return true;
      };
    });
  };
  EXPECT_THROW(run(), std::runtime_error);
  ASSERT_TRUE(hogwild.failed());
  EXPECT_EQ(hogwild.failed()->worker, 1u);
  EXPECT_EQ(hogwild.failed()->step, 7u);
  EXPECT_EQ(hogwild.run(each([](HogwildWorker&) { return true; }), {.steps = 5}).steps, 5u);
  EXPECT_FALSE(hogwild.failed());
  EXPECT_THROW(hogwild.run([](HogwildWorker&) -> Hogwild::Step { throw 3; }), int);
}

TEST(Hogwild, it_ends_at_a_time_or_when_asked) {
  Updater updater(Parameters(Layout{{"w", {4}}}), Optimizer::sgd(1.0));
  Hogwild hogwild(updater, 2);
  const auto endless = each([](HogwildWorker&) { return true; });
  EXPECT_GE(hogwild.run(endless, {.duration_ns = 2'000'000}).seconds, 0.002);
  const auto enough = [](const HogwildReport& report) { return report.steps > 100; };
  EXPECT_GT(hogwild.run(endless, {.enough = enough, .ask_every_ns = 100'000}).steps, 100u);
  const auto throws = [](const HogwildReport&) -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW(hogwild.run(endless, {.enough = throws, .ask_every_ns = 1}), std::runtime_error);
}

TEST(Hogwild, a_non_finite_gradient_is_raised_skipped_or_counted) {
  const float inf = std::numeric_limits<float>::infinity();
  for (auto policy : {NonFinite::kRaise, NonFinite::kSkip, NonFinite::kCount}) {
    Updater updater(Parameters(Layout{{"w", {4}}, {"t", {3, 2}}}), Optimizer::sgd(1.0));
    Hogwild hogwild(updater, 1, {.non_finite = policy});
    const auto run = [&] {
      return hogwild.run(each([&](HogwildWorker& worker) {
                           const Slab gradients = worker.parameters().gradients();
                           gradients.at("t").as_span<float>()[3] = inf;
                           worker.apply(gradients);
                           return true;
                         }),
                         {.steps = 3});
    };
    if (policy == NonFinite::kRaise) {
      try {
        run();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("block 't' is inf at (1, 1)"), std::string::npos)
            << error.what();
      }
      EXPECT_EQ(updater.step(), 0u);
      continue;
    }
    const auto report = run();
    EXPECT_EQ(report.non_finite, 3u);
    EXPECT_EQ(report.skipped, policy == NonFinite::kSkip ? 3u : 0u);
    EXPECT_EQ(report.updates, policy == NonFinite::kSkip ? 0u : 3u);
  }
}

TEST(Hogwild, invalid_arguments_are_refused) {
  Updater updater(Parameters(a_long_layout()), Optimizer::sgd(1.0));
  EXPECT_THROW(Hogwild(updater, 0), Error);
  Hogwild hogwild(updater, 1);
  const std::vector<float> three(3), four(4);
  const std::vector<GradientPart> wrong_size{{"b", four}}, twice{{"b", three}, {"b", three}},
      unknown{{"nothing", three}};
  for (const auto& parts : {wrong_size, twice, unknown}) {
    EXPECT_THROW(hogwild.run(each([&](HogwildWorker& worker) { return worker.apply(parts); })),
                 Error);
  }
  EXPECT_THROW(hogwild.run(each([&](HogwildWorker& worker) {
    return worker.apply(worker.parameters().slab());
  })),
               Error);
  EXPECT_EQ(updater.step(), 0u);
}

}  // namespace
}  // namespace penstock::train
