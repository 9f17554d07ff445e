#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "task_values.h"

namespace penstock::python {

// The batches that PythonWorkers made, as Python objects. One thread, with the GIL.
class PythonBatches {
 public:
  // Both outlive this.
  PythonBatches(PlanEngine& engine, TaskValues& values) : engine_(engine), values_(values) {}

  // Takes the scheduler's current ticket, and reports its losses. Nothing (an invalid object): all
  // of it was skipped, or the stream has ended. REQUIRED: none of its tasks failed.
  nanobind::object take();

 private:
  // What the granules of a batch handed over besides the rows that they wrote.
  struct Rows {
    uint64_t made = 0;  // without lost rows
    uint64_t bytes = 0;
    std::vector<uint32_t> lost;  // places of lost rows
    nanobind::object objects;    // columns of values that are no arrays, each a list
  };
  nanobind::object take_rows();
  Rows collect(const BatchEntry& entry);
  void set_layout(const BatchEntry& entry);
  void add_losses(nanobind::handle list, const BatchEntry& entry);

  PlanEngine& engine_;
  TaskValues& values_;
  // The layout of the last batch; the next one probably has the same.
  std::vector<std::byte> spec_;
  uint64_t spec_rows_ = 0;
  RowLayout layout_;
  std::vector<std::byte*> columns_;
};

}  // namespace penstock::python
