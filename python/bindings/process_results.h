#pragma once

#include "penstock/pipeline/streams/parallel_map.h"
#include "task_values.h"

namespace penstock::python {

// Takes the results of a parallel map from workers in other processes (PacketOutlet::element).
// Takes the GIL.
class ProcessResults : public ParallelMapResults {
 public:
  // `values` outlives it.
  explicit ProcessResults(TaskValues& values) : values_(values) {}
  ParallelMapResult take(Task& task) override;

 private:
  TaskValues& values_;
};

}  // namespace penstock::python
