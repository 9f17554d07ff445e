#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/pipeline/plan/plan.h"

namespace nanobind {
class module_;
}

namespace penstock::python {

// What a Loader and its workers share: a built Dataset, or the plan of a Python data set.
struct BuiltPlan {
  std::shared_ptr<const Plan> plan;
  // For a Loader over arrays, whose leaves are rows of bytes: the structure of a sample
  // (Sample::spec).
  std::vector<std::byte> sample;
  // For a Python data set, sampler or generator, whose samples PythonWorkers make: the number of
  // samples, which Core changes. Null: ChainWorkers run the plan.
  std::shared_ptr<std::atomic<uint64_t>> count;
};

}  // namespace penstock::python
