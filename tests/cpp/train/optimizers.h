#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "penstock/train/optimizer.h"
#include "penstock/train/slab.h"

// Every formula, and slabs to try them on.
namespace penstock::train::testing {

inline std::vector<Optimizer> all_optimizers(Optimizer::Common common = {}) {
  return {
      Optimizer::sgd(0.1, common),           Optimizer::momentum(0.1, 0.9, common),
      Optimizer::nesterov(0.1, 0.9, common), Optimizer::adagrad(0.1, 1e-10, 0.5, common),
      Optimizer::rmsprop(0.01, {}, common),  Optimizer::rmsprop(0.01, {.centered = true}, common),
      Optimizer::adam(0.01, {}, common),     Optimizer::adamw(0.01, {}, common)};
}

inline Layout a_layout() { return Layout{{"w", {7, 3}}, {"scalar", {}}, {"b", {3}}}; }

inline void fill(const Slab& slab, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (const Block& block : slab.layout().blocks()) {
    for (float& x : slab.values_of(block)) x = normal(random);
  }
}

inline bool same_bits(const Slab& a, const Slab& b) {
  return std::memcmp(a.values().data(), b.values().data(), a.layout().bytes()) == 0;
}

}  // namespace penstock::train::testing
