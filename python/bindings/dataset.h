#pragma once

#include <memory>

#include "penstock/pipeline/plan.h"

namespace nanobind {
class module_;
}

namespace penstock::python {

// A Dataset that was built: what a Loader and its workers share.
struct BuiltPlan {
  std::shared_ptr<const Plan> plan;
};

void bind_dataset(nanobind::module_& m);

}  // namespace penstock::python
