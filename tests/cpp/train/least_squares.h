#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/train/tower.h"
#include "penstock/train/towers.h"

// Least squares over rows of numbers, for towers to learn.
namespace penstock::train::testing {

// Waits for a state.
inline constexpr auto kPatience = std::chrono::seconds(100);

inline constexpr int64_t kWidth = 6, kSamples = 150, kBatch = 8;  // 18 batches and one of 6 rows

inline Parameters fresh() { return Parameters(Layout{{"w", {kWidth}}, {"b", {}}}); }

inline Example samples() {
  Tensor x = Tensor::make(DType::kFloat32, {kSamples, kWidth});
  Tensor y = Tensor::make(DType::kFloat32, {kSamples});
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& value : x.as_span<float>()) value = normal(random);
  for (float& value : y.as_span<float>()) value = normal(random);
  return {{"x", x}, {"y", y}};
}

inline Dataset batched(int64_t rows = kBatch) {
  return Dataset::arrays(samples()).batch(static_cast<uint64_t>(rows));
}

// Least squares: the gradient of the mean over the batch into `gradients`, which is zero.
inline double gradient_of(const Parameters& parameters, const Example& batch,
                          const Slab& gradients) {
  const auto x = batch.at("x").as_span<const float>(), y = batch.at("y").as_span<const float>();
  const auto w = parameters.at("w").as_span<float>(), dw = gradients.at("w").as_span<float>();
  float& db = gradients.at("b").as_span<float>()[0];
  const float share = 1.0f / static_cast<float>(y.size());
  double loss = 0;
  for (size_t row = 0; row < y.size(); ++row) {
    const float* values = x.data() + row * kWidth;
    float error = parameters.at("b").as_span<float>()[0] - y[row];
    for (size_t i = 0; i < kWidth; ++i) error += w[i] * values[i];
    for (size_t i = 0; i < kWidth; ++i) dw[i] += error * values[i] * share;
    db += error * share;
    loss += 0.5 * error * error * share;
  }
  return loss;
}

inline Towers::Step step_of(Tower& tower) {
  return [&tower](Example& batch) {
    return gradient_of(tower.parameters(), batch, tower.gradients());
  };
}

// Batches given by the test: all of one pass.
inline Rounds::Next list_of(std::vector<Example> batches) {
  return [batches, at = size_t{0}]() mutable -> std::optional<Example> {
    if (at > batches.size()) at = 0;
    return at < batches.size() ? std::optional(batches[at++]) : (++at, std::nullopt);
  };
}

inline std::vector<Example> all_of(Loader feed) {
  std::vector<Example> batches;
  while (auto batch = feed.next()) batches.push_back(*batch);
  return batches;
}

// A plain loop on one thread over the same batches, round by round.
inline void by_hand(Updater& updater, const std::vector<Example>& batches, size_t towers) {
  for (size_t first = 0; first < batches.size(); first += towers) {
    std::vector<Slab> gradients;
    std::vector<float> shares(towers, 0);
    double sum = 0, most = 0;
    for (size_t t = 0; t < towers; ++t) {
      gradients.push_back(updater.parameters().gradients());
      if (first + t >= batches.size()) continue;
      const Example& batch = batches[first + t];
      gradient_of(updater.parameters(), batch, gradients[t]);
      const auto rows = static_cast<double>(batch.at("y").dim(0));
      most = std::max(most, rows);
      sum += rows;
      shares[t] = static_cast<float>(rows);
    }
    for (float& share : shares) share = static_cast<float>(share / most);
    add_towers(gradients, shares, 0, gradients[0].layout().floats());
    updater.apply(gradients[0], most / sum);
  }
}

inline void expect_near(const Parameters& a, const Parameters& b) {
  for (size_t i = 0; i < a.slab().values().size(); ++i) {
    EXPECT_NEAR(a.slab().values()[i], b.slab().values()[i], 1e-5);
  }
}

inline std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace penstock::train::testing
