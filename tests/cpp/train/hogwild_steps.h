#pragma once

#include <cstddef>

#include "penstock/train/hogwild.h"

// Steps for several tests of Hogwild.
namespace penstock::train::testing {

// Dense gradients toward 2 for every weight: the weights converge to 2 even if updates are lost.
// For workers with snapshots.
inline Hogwild::Step drawn_to_two(HogwildWorker& worker) {
  return [&worker, gradients = worker.parameters().gradients()] {
    worker.read();
    const auto to = gradients.values(), from = worker.weights().slab().values();
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] - 2;
    return worker.apply(gradients);
  };
}

}  // namespace penstock::train::testing
