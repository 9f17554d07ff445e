#pragma once

#include <cstddef>

#include "penstock/train/hogwild.h"

// Steps that several tests of Hogwild take.
namespace penstock::train::testing {

// Dense gradients that draw every weight to 2: whatever is lost, that is where they end. For
// workers with snapshots.
inline Hogwild::Step drawn_to_two(HogwildWorker& worker) {
  return [&worker, gradients = worker.parameters().gradients()] {
    worker.read();
    const auto to = gradients.values(), from = worker.weights().slab().values();
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] - 2;
    return worker.apply(gradients);
  };
}

}  // namespace penstock::train::testing
