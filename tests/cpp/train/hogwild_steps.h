#pragma once

#include <cstddef>

#include "penstock/train/hogwild.h"

// Steps that several tests of Hogwild take.
namespace penstock::train::testing {

// Dense gradients that draw every weight to 2: whatever is lost, that is where they end.
inline Hogwild::Step drawn_to_two(HogwildWorker& worker) {
  return [&worker, weights = worker.parameters().gradients(),
          gradients = worker.parameters().gradients()] {
    worker.read(weights);
    const auto to = gradients.values(), from = weights.values();
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] - 2;
    return worker.apply(gradients);
  };
}

}  // namespace penstock::train::testing
