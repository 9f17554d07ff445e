// Sparse logistic regression by threads that change one vector with no lock: Hogwild's own case.
// No framework, no Python.
//
// Rows are visited in blocks of neighbours, the blocks in random order: as good for learning as a
// shuffle of rows, and the next row is where the processor looks for it. Each row is an update.
//
// example_hogwild [rows features per_row]
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
int rows_count = 40'000, features = 20'000, per_row = 40;  // or what the command line says

struct Rows {
  Rows() : at(size_t(rows_count) * size_t(per_row)), value(at.size()), label(rows_count) {
    penstock::RandomStream rng({.seed = 1});
    std::vector<float> truth(features);
    for (float& w : truth) w = static_cast<float>(rng.uniform()) - 0.5f;
    for (int row = 0; row < rows_count; ++row) {
      float sum = 0;
      for (int i = row * per_row; i < (row + 1) * per_row; ++i) {
        const double u = rng.uniform();  // some features are in many rows, most in few
        at[i] = static_cast<int32_t>(u * u * u * features);
        value[i] = 0.1f + 0.1f * static_cast<float>(rng.uniform());
        sum += truth[at[i]] * value[i];
      }
      label[row] = sum > 0 ? 1.0f : -1.0f;
    }
  }
  std::span<const int32_t> features_of(int row) const {
    return {at.data() + size_t(row) * per_row, size_t(per_row)};
  }
  const float* values(int row) const { return value.data() + size_t(row) * per_row; }
  std::vector<int32_t> at;
  std::vector<float> value, label;
};

double loss_of(const Rows& rows, const float* w) {
  double loss = 0;
  for (int row = 0; row < rows_count; ++row) {
    const float z = rows.label[row] * pt::relaxed::dot(w, rows.features_of(row), rows.values(row));
    loss += std::log1p(std::exp(-double{z}));
  }
  return loss / rows_count;
}

// Makes three passes and returns the loss.
double train(const Rows& rows, size_t workers, pt::HogwildReport& report) {
  pt::Updater updater(pt::Parameters(pt::Layout{{"w", {features}}}), pt::Optimizer::sgd(kRate));
  float* w = updater.parameters().slab().values().data();
  std::vector<int> order(rows_count / kBlock);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  std::atomic<size_t> next{0};
  pt::Hogwild hogwild(updater, workers);
  report = hogwild.run([&](pt::HogwildWorker& worker) -> pt::Hogwild::Step {
    return [&] {
      const size_t block = next.fetch_add(1);
      if (block >= 3 * order.size()) return false;
      worker.read();
      const int first = order[block % order.size()] * kBlock;
      for (int row = first; row < first + kBlock; ++row) {
        const float y = rows.label[row];
        const float z = y * pt::relaxed::dot(w, rows.features_of(row), rows.values(row));
        pt::relaxed::add(w, rows.features_of(row), rows.values(row), kRate * y / (1 + std::exp(z)));
      }
      worker.count(kBlock);
      return true;
    };
  });
  return loss_of(rows, w);
}

int main(int argc, char** argv) {
  if (argc == 4) {
    rows_count = std::atoi(argv[1]) / kBlock * kBlock;
    features = std::atoi(argv[2]);
    per_row = std::atoi(argv[3]);
  }
  const Rows rows;
  double serial = 0, worst = 0;
  for (size_t workers : {1, 2, 4}) {
    pt::HogwildReport report;
    const double loss = train(rows, workers, report);
    if (workers == 1) serial = loss;
    worst = std::max(worst, loss);
    std::printf("%zu workers: %.1f M updates a second, loss %.4f\n", workers,
                report.updates_per_second() / 1e6, loss);
  }
  return serial < 0.5 && worst < 1.05 * serial ? 0 : 1;
}
