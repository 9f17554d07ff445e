#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "penstock/pipeline/plan/plan.h"

namespace nanobind {
class module_;
}

namespace penstock::python {

// A built Dataset, which a Loader and its workers share.
struct BuiltPlan {
  std::shared_ptr<const Plan> plan;
  // For a Loader over arrays, whose leaves are rows of bytes: the structure of a sample
  // (Sample::spec).
  std::vector<std::byte> sample;
};

}  // namespace penstock::python
