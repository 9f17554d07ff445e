// A softmax regression on synthetic images, fed by two threads. No framework, no Python.
#include <penstock/penstock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

constexpr int kClasses = 4, kSide = 16, kPixels = kSide * kSide;

// 4096 noisy images of a bar: lying or standing, in the first or the second half. Any class with
// size() and get() can be fed; get() is called by several threads at once.
class Bars {
 public:
  uint64_t size() const { return 4096; }

  penstock::Example get(uint64_t index, penstock::SampleContext& context) const {
    penstock::Tensor image = penstock::Tensor::make(penstock::DType::kFloat32, {kSide, kSide});
    penstock::Tensor label = penstock::Tensor::make(penstock::DType::kInt64, {});
    int64_t kind = static_cast<int64_t>(index % kClasses);
    label.as_span<int64_t>()[0] = kind;
    // New noise and a new position in each epoch, the same for any number of workers.
    penstock::RandomStream& rng = context.rng();
    auto at = static_cast<int>(rng.below(kSide / 2)) + (kind % 2 == 0 ? 0 : kSide / 2);
    auto pixels = image.as_span<float>();
    for (int p = 0; p < kPixels; ++p) {
      int along = kind < 2 ? p / kSide : p % kSide;
      pixels[p] = static_cast<float>(rng.uniform()) + (along == at ? 1.0f : 0.0f);
    }
    return {{"image", image}, {"label", label}};
  }
};

struct Softmax {
  std::vector<float> weights = std::vector<float>(kClasses * kPixels);
  std::array<float, kClasses> bias{};

  // One step of gradient descent; returns the number of correct predictions before it.
  int step(const penstock::Example& batch, float rate) {
    auto images = batch.at("image").as_span<const float>();
    auto labels = batch.at("label").as_span<const int64_t>();
    int right = 0;
    for (size_t row = 0; row < labels.size(); ++row) {
      const float* x = &images[row * kPixels];
      std::array<float, kClasses> p = bias;
      for (int c = 0; c < kClasses; ++c) {
        for (int i = 0; i < kPixels; ++i) p[c] += weights[c * kPixels + i] * (x[i] - 0.5f);
      }
      right += std::max_element(p.begin(), p.end()) - p.begin() == labels[row];
      float most = *std::max_element(p.begin(), p.end()), sum = 0;
      for (float& logit : p) sum += logit = std::exp(logit - most);
      for (int c = 0; c < kClasses; ++c) {
        float slope = rate * (p[c] / sum - (c == labels[row] ? 1.0f : 0.0f));
        for (int i = 0; i < kPixels; ++i) weights[c * kPixels + i] -= slope * (x[i] - 0.5f);
        bias[c] -= slope;
      }
    }
    return right;
  }
};

int main() {
  penstock::Loader feed(Bars(), {.batch_size = 64, .shuffle = true, .seed = 7, .workers = 2});
  Softmax model;
  double accuracy = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    int right = 0;
    for (auto& batch : feed.epoch()) right += model.step(batch, 0.01f);
    accuracy = right / 4096.0;
    std::printf("epoch %d: %.1f %% right\n", epoch, 100 * accuracy);
  }
  auto stats = feed.stats();
  double seconds = static_cast<double>(stats.last_ns - stats.first_ns) / 1e9;
  std::printf("%.0f images a second\n", static_cast<double>(stats.samples) / seconds);
  return accuracy > 0.95 ? 0 : 1;
}
