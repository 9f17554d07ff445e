// Sparse logistic regression, one row per update, for bench/cases/hogwild_sparse.py.
//
// hogwild_sparse move prints the nanoseconds until one core sees a write of another core: the cost
// of moving a cache line.
//
// hogwild_sparse FOLDER WAY THREADS FEATURES PER_ROW RATE PASSES, where FOLDER has at (int32),
// values and labels (float32). WAY: "ours"; "replicas", the same with a vector for each thread,
// merged from time to time, and a rate multiplied by their number; "plain", a hand-written loop
// over shuffled rows; "own", as "ours" with separate weights for each thread, averaged at the end.
// Prints updates per second and the mean loss.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "penstock/train/hogwild.h"
#include "penstock/train/relaxed.h"

namespace {

namespace train = penstock::train;
constexpr size_t kBlock = 64;  // consecutive rows that are visited in order

template <class T>
std::vector<T> load(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

struct Rows {
  std::vector<int32_t> at;
  std::vector<float> values, labels;
  size_t features, per_row;
  float rate;

  float dot(const float* w, size_t row) const {
    return train::relaxed::dot(w, {&at[row * per_row], per_row}, &values[row * per_row]);
  }
  void learn(float* w, size_t row) const {
    const float y = labels[row], z = y * dot(w, row);
    train::relaxed::add(w, {&at[row * per_row], per_row}, &values[row * per_row],
                        rate * y / (1 + std::exp(z)));
  }
  double loss(const float* w) const {
    double sum = 0;
    for (size_t row = 0; row < labels.size(); ++row) {
      sum += std::log1p(std::exp(-double{labels[row] * dot(w, row)}));
    }
    return sum / static_cast<double>(labels.size());
  }
};

std::vector<uint32_t> shuffled(size_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  return order;
}

void print(double updates, double seconds, double loss) {
  std::printf("%.6g %.6f\n", updates / seconds, loss);
}

void ours(const Rows& rows, size_t threads, size_t passes, size_t replicas) {
  train::Updater updater(
      train::Parameters(train::Layout{{"w", {static_cast<int64_t>(rows.features)}}}),
      train::Optimizer::sgd(rows.rate));
  const auto blocks = shuffled(rows.labels.size() / kBlock);
  std::atomic<size_t> next{0};
  train::Hogwild hogwild(updater, threads, {.replicas = replicas});
  const auto report = hogwild.run([&](train::HogwildWorker& worker) -> train::Hogwild::Step {
    return [&, w = worker.parameters().slab().values().data()] {
      const size_t taken = next.fetch_add(1, std::memory_order_relaxed);
      if (taken >= passes * blocks.size()) return false;
      worker.read();
      const size_t first = blocks[taken % blocks.size()] * kBlock;
      for (size_t row = first; row < first + kBlock; ++row) rows.learn(w, row);
      worker.count(kBlock);
      return true;
    };
  });
  print(static_cast<double>(report.updates), report.seconds,
        rows.loss(updater.parameters().slab().values().data()));
}

// Runs `run(thread)` in each of several threads.
template <class F>
double seconds_of(size_t threads, F run) {
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> all;
  for (size_t thread = 0; thread < threads; ++thread) all.emplace_back(run, thread);
  for (std::thread& thread : all) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void plain(const Rows& rows, size_t threads, size_t passes) {
  std::vector<float> w(rows.features);
  const auto order = shuffled(rows.labels.size());
  const double seconds = seconds_of(threads, [&](size_t thread) {
    for (size_t pass = 0; pass < passes; ++pass) {
      for (size_t i = thread; i < order.size(); i += threads) rows.learn(w.data(), order[i]);
    }
  });
  print(static_cast<double>(passes * order.size()), seconds, rows.loss(w.data()));
}

void own(const Rows& rows, size_t threads, size_t passes) {
  std::vector<std::vector<float>> w(threads, std::vector<float>(rows.features));
  const auto blocks = shuffled(rows.labels.size() / kBlock);
  const double seconds = seconds_of(threads, [&](size_t thread) {
    for (size_t pass = 0; pass < passes; ++pass) {
      for (size_t i = thread; i < blocks.size(); i += threads) {
        const size_t first = blocks[i] * kBlock;
        for (size_t row = first; row < first + kBlock; ++row) rows.learn(w[thread].data(), row);
      }
    }
  });
  std::vector<float> mean(rows.features);
  for (const auto& one : w) {
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += one[i] / static_cast<float>(threads);
  }
  print(static_cast<double>(passes * blocks.size() * kBlock), seconds, rows.loss(mean.data()));
}

// Two threads answer each other through one word, for a second or some thousand times. The shortest
// of many short runs counts, in which both threads kept their cores.
void move() {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 500, kAnswers = 100, kEnd = -1;
  alignas(64) std::atomic<int> word{0};
  std::thread other([&] {
    for (int turn = 1;; turn += 2) {
      int seen = 0;
      while ((seen = word.load(std::memory_order_acquire)) != turn) {
        if (seen == kEnd) return;
      }
      word.store(turn + 1, std::memory_order_release);
    }
  });
  double best = 1e9;
  int turn = 0;
  const auto start = Clock::now();
  for (int run = 0; run < kRuns && Clock::now() - start < std::chrono::seconds(1); ++run) {
    const auto began = Clock::now();
    for (int i = 0; i < kAnswers; ++i, turn += 2) {
      word.store(turn + 1, std::memory_order_release);
      while (word.load(std::memory_order_acquire) != turn + 2) {
      }
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - began;
    best = std::min(best, took.count() / (2 * kAnswers));
  }
  word.store(kEnd, std::memory_order_release);
  other.join();
  std::printf("%.1f\n", best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string("move")) {
    move();
    return 0;
  }
  if (argc != 8) return 2;
  const std::string folder = argv[1], way = argv[2];
  const size_t threads = std::strtoull(argv[3], nullptr, 10);
  const size_t passes = std::strtoull(argv[7], nullptr, 10);
  Rows rows{load<int32_t>(folder + "/at"),       load<float>(folder + "/values"),
            load<float>(folder + "/labels"),     std::strtoull(argv[4], nullptr, 10),
            std::strtoull(argv[5], nullptr, 10), std::strtof(argv[6], nullptr)};
  if (way == "ours") ours(rows, threads, passes, 1);
  if (way == "replicas") {
    rows.rate *= static_cast<float>(threads);
    ours(rows, threads, passes, threads);
  }
  if (way == "plain") plain(rows, threads, passes);
  if (way == "own") own(rows, threads, passes);
  return 0;
}
