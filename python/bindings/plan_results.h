#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/pipeline/engine/local_transport.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/plan.h"
#include "process_inlet.h"
#include "unit_values.h"

namespace penstock::python {

// What a plan hands out, as Python objects. With the GIL held.
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

// Of workers in this process.
class ThreadTransport : public LocalTransport {
 public:
  explicit ThreadTransport(std::function<void()> attend) : attend_(std::move(attend)) {}
  void attend() override { attend_(); }

 private:
  std::function<void()> attend_;
};

// Of workers in other processes, whose results are packets. With the GIL held, but for discard()
// and the inlet, which take it.
class ProcessTransport : public ThreadTransport {
 public:
  // `values` outlives it.
  ProcessTransport(UnitValues& values, std::function<void()> attend)
      : ThreadTransport(std::move(attend)), values_(values), inlet_(values) {}
  SectionInlet& inlet() override { return inlet_; }
  std::vector<Outcome::Loss> losses_in(Unit& unit) override;
  void discard(Unit& unit) override { values_.discard(unit); }

 private:
  UnitValues& values_;
  ProcessInlet inlet_;
};

}  // namespace penstock::python
