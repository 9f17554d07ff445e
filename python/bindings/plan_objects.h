#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/plan/plan.h"

namespace penstock::python {

// Makes Python objects of a plan's items. With the GIL held.
class PlanObjects {
 public:
  // `sample`: BuiltPlan::sample.
  PlanObjects(std::shared_ptr<const Plan> plan, std::vector<std::byte> sample)
      : plan_(std::move(plan)), sample_(std::move(sample)) {}

  nanobind::object object_of(const PlanOutput::Item& item);

 private:
  nanobind::object columns_of(const PlanOutput::Item& batch);

  std::shared_ptr<const Plan> plan_;
  std::vector<std::byte> sample_;
  RowLayout layout_;  // of the last batch of arrays' rows
  std::vector<std::byte*> columns_;
};

}  // namespace penstock::python
