#pragma once

#include <penstock/torch/alias.h>

#include <cmath>
#include <memory>

#include "digits.h"

// A network of a population: its weights and Adam's two moments are windows of one slab.

constexpr uint64_t kBatch = 32;

inline double rate_of(size_t member) {
  return 1e-4 * std::pow(10.0, static_cast<double>(member) / 3);
}

inline std::shared_ptr<LeNet> seeded(size_t member) {
  torch::manual_seed(member);
  return std::make_shared<LeNet>();
}

struct Member {
  static constexpr size_t kParts = 3;  // of a row: weights, and the moments

  Member(const penstock::train::Slab& rows, const penstock::train::Layout& layout, size_t number)
      : model(seeded(number)),
        alias(*model, weights_in(rows, layout, number, *model)),
        updater(alias.parameters(), penstock::train::Optimizer::adam(rate_of(number), {}, {}),
                penstock::train::NonFinite::kRaise,
                {window(rows, layout, number, 1), window(rows, layout, number, 2)}) {}

  static penstock::train::Slab window(const penstock::train::Slab& rows,
                                      const penstock::train::Layout& layout, size_t number,
                                      size_t part) {
    return rows.window(layout, (number * kParts + part) * layout.floats());
  }
  static penstock::train::Parameters weights_in(const penstock::train::Slab& rows,
                                                const penstock::train::Layout& layout,
                                                size_t number, LeNet& model) {
    const penstock::train::Slab weights = window(rows, layout, number, 0);
    weights.copy_from(penstock::torch::Alias(model).parameters().slab());
    return penstock::train::Parameters(weights);
  }

  void learn(uint64_t steps) {
    Digits digits(1024, kBatch);
    for (uint64_t step = 0; step < steps; ++step) {
      loss_of(*model, digits.take()).backward();
      updater.apply(alias.gradients());
      alias.gradients().zero();
    }
  }

  std::shared_ptr<LeNet> model;
  penstock::torch::Alias alias;
  penstock::train::Updater updater;
};
