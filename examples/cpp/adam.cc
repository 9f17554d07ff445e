// Softmax regression with Adam over penstock's parameters, stopped in the middle and continued from
// its file, bit for bit. No framework, no Python.
#include <penstock/penstock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
namespace pt = penstock::train;
constexpr int kClasses = 3, kInputs = 8, kBatch = 64;

// Points around one centre for each class; a batch is a function of its number.
struct Batch {
  explicit Batch(uint64_t number) : rng({.seed = 7, .index = number}) {
    for (int row = 0; row < kBatch; ++row) {
      label[row] = static_cast<int>(rng.below(kClasses));
      for (int i = 0; i < kInputs; ++i) {
        x[row][i] = static_cast<float>(rng.uniform()) + (i % kClasses == label[row] ? 0.5f : 0.0f);
      }
    }
  }
  penstock::RandomStream rng;
  std::array<std::array<float, kInputs>, kBatch> x;
  std::array<int, kBatch> label;
};

// Adds the gradient of the mean cross-entropy to `gradients`; returns the correct predictions.
int compute(const pt::Parameters& parameters, const Batch& batch, const pt::Slab& gradients) {
  auto w = parameters.at("w").as_span<float>(), b = parameters.at("b").as_span<float>();
  auto dw = gradients.at("w").as_span<float>(), db = gradients.at("b").as_span<float>();
  int right = 0;
  for (int row = 0; row < kBatch; ++row) {
    std::array<float, kClasses> p;
    for (int c = 0; c < kClasses; ++c) {
      p[c] = b[c];
      for (int i = 0; i < kInputs; ++i) p[c] += w[c * kInputs + i] * batch.x[row][i];
    }
    right += std::max_element(p.begin(), p.end()) - p.begin() == batch.label[row];
    float most = *std::max_element(p.begin(), p.end()), sum = 0;
    for (float& logit : p) sum += logit = std::exp(logit - most);
    for (int c = 0; c < kClasses; ++c) {
      float slope = (p[c] / sum - (c == batch.label[row] ? 1.0f : 0.0f)) / kBatch;
      for (int i = 0; i < kInputs; ++i) dw[c * kInputs + i] += slope * batch.x[row][i];
      db[c] += slope;
    }
  }
  return right;
}

pt::Updater new_updater() {
  pt::Layout layout{{"w", {kClasses, kInputs}}, {"b", {kClasses}}};
  return pt::Updater(pt::Parameters(layout), pt::Optimizer::adam(0.02, {}, {}));
}

// Returns the accuracy on the last batch.
double run(pt::Updater& updater, uint64_t last) {
  const pt::Slab gradients = updater.parameters().gradients();
  int right = 0;
  for (; updater.step() < last; gradients.zero()) {
    right = compute(updater.parameters(), Batch(updater.step()), gradients);
    updater.apply(gradients);
  }
  return static_cast<double>(right) / kBatch;
}

int main() {
  auto file = std::filesystem::temp_directory_path() / "penstock_adam.safetensors";
  auto whole = new_updater(), stopped = new_updater(), resumed = new_updater();
  double accuracy = run(whole, 400);
  run(stopped, 200);
  save(stopped, file.string());
  load(resumed, file.string());
  run(resumed, 400);
  std::filesystem::remove(file);
  bool same = bit_equal(whole.parameters().at("w"), resumed.parameters().at("w"));
  std::printf("%.0f %% right; resumed: %s\n", 100 * accuracy, same ? "the same bits" : "others");
  return accuracy > 0.9 && same ? 0 : 1;
}
