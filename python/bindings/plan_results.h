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
#include "penstock/pipeline/plan/plan.h"
#include "process_results.h"
#include "task_values.h"

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

// The transport of workers in this process.
class ThreadTransport : public LocalTransport {
 public:
  explicit ThreadTransport(std::function<void()> attend) : attend_(std::move(attend)) {}
  void attend() override { attend_(); }

 private:
  std::function<void()> attend_;
};

// The transport of workers in other processes, whose results are packets. With the GIL held, except
// for discard() and results(), which take it.
class ProcessTransport : public ThreadTransport {
 public:
  // `values` outlives it.
  ProcessTransport(TaskValues& values, std::function<void()> attend)
      : ThreadTransport(std::move(attend)), values_(values), results_(values) {}
  ParallelMapResults& results() override { return results_; }
  std::vector<Loss> losses_in(Task& task) override;
  void discard(Task& task) override { values_.discard(task); }

 private:
  TaskValues& values_;
  ProcessResults results_;
};

}  // namespace penstock::python
