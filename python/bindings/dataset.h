#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "penstock/pipeline/plan/plan.h"

namespace nanobind {
class module_;
}

namespace penstock::python {

// A Dataset that was built: what a Loader and its workers share.
struct BuiltPlan {
  std::shared_ptr<const Plan> plan;
  // Of a Loader over arrays, whose leaves are rows of bytes: what a sample is (Sample::spec).
  std::vector<std::byte> sample;
};

// The plan of a Loader over arrays.
void bind_columns(nanobind::module_& m);
void bind_dataset(nanobind::module_& m);

}  // namespace penstock::python
