// Sparse logistic regression by threads that change one vector with no lock: Hogwild's own case. No
// framework, no Python. Blocks of consecutive rows are visited in random order, which trains as
// well as a shuffle of rows, and lets the processor prefetch the next row. Each row is an update.
// Usage: example_hogwild [rows features per_row]
#include <penstock/penstock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>
namespace pt = penstock::train;
constexpr int kBlock = 64;
constexpr float kRate = 0.5f;
int rows_count = 40'000, features = 20'000, per_row = 40;  // unless given on the command line

struct Rows {
  Rows() : at(size_t(rows_count) * size_t(per_row)), value(at.size()), label(rows_count, 1.0f) {
    penstock::RandomStream rng({.seed = 1});
    std::vector<float> truth(features);
    for (float& w : truth) w = static_cast<float>(rng.uniform()) - 0.5f;
    for (size_t i = 0; i < at.size(); ++i) {
      at[i] = static_cast<int32_t>(std::pow(rng.uniform(), 3) * features);  // few are frequent
      value[i] = 0.1f + 0.1f * static_cast<float>(rng.uniform());
    }
    for (int row = 0; row < rows_count; ++row) label[row] = margin(truth.data(), row) > 0 ? 1 : -1;
  }
  auto features_of(int row) const { return std::span(at).subspan(size_t(row) * per_row, per_row); }
  const float* values(int row) const { return value.data() + size_t(row) * per_row; }
  float margin(const float* w, int row) const {
    return label[row] * pt::relaxed::dot(w, features_of(row), values(row));
  }
  std::vector<int32_t> at;
  std::vector<float> value, label;
};

// Makes three passes, prints their results and returns the loss.
double train(const Rows& rows, size_t workers) {
  pt::Updater updater(pt::Parameters(pt::Layout{{"w", {features}}}), pt::Optimizer::sgd(kRate));
  float* w = updater.parameters().slab().values().data();
  std::vector<int> order(rows_count / kBlock);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  std::atomic<size_t> next{0};
  pt::Hogwild hogwild(updater, workers);
  auto report = hogwild.run([&](pt::HogwildWorker& worker) -> pt::Hogwild::Step {
    return [&] {
      const size_t block = next.fetch_add(1);
      if (block >= 3 * order.size()) return false;
      worker.read();
      const int first = order[block % order.size()] * kBlock;
      for (int row = first; row < first + kBlock; ++row) {
        const float slope = rows.label[row] / (1 + std::exp(rows.margin(w, row)));
        pt::relaxed::add(w, rows.features_of(row), rows.values(row), kRate * slope);
      }
      worker.count(kBlock);
      return true;
    };
  });
  double loss = 0;
  for (int i = 0; i < rows_count; ++i) loss += std::log1p(std::exp(-double{rows.margin(w, i)}));
  std::printf("%zu workers: %.1f M updates a second, loss %.4f\n", workers,
              report.updates_per_second() / 1e6, loss / rows_count);
  return loss / rows_count;
}

int main(int argc, char** argv) {
  if (argc == 4) {
    rows_count = std::atoi(argv[1]) / kBlock * kBlock;
    features = std::atoi(argv[2]);
    per_row = std::atoi(argv[3]);
  }
  const Rows rows;
  const double one = train(rows, 1), two = train(rows, 2), four = train(rows, 4);
  return one < 0.5 && std::max(two, four) < 1.05 * one ? 0 : 1;
}
