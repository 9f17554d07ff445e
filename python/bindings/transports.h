#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/pipeline/engine/plan_engine.h"
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

// The transport of workers in this process.
class ThreadTransport : public LocalTransport {
 public:
  explicit ThreadTransport(std::function<void()> attend) : attend_(std::move(attend)) {}
  void attend() override { attend_(); }

 private:
  std::function<void()> attend_;
};

// The transport of workers whose results are Python values: packets of other processes, or objects
// of PythonWorkers in this one. With the GIL held, except for discard() and results(), which take
// it.
class ValueTransport : public PlanEngine::Transport {
 public:
  // `values` outlives it.
  ValueTransport(TaskValues& values, std::function<void()> attend)
      : values_(values), results_(values), attend_(std::move(attend)) {}
  ParallelMapResults& results() override { return results_; }
  std::vector<Loss> losses_in(Task& task) override;
  void discard(Task& task) override { values_.discard(task); }
  void attend() override { attend_(); }
  // Error kInternal: no worker of this transport is a ChainWorker of this process.
  std::unique_ptr<ChainWorker::Outlet> outlet() override;

 private:
  TaskValues& values_;
  ProcessResults results_;
  std::function<void()> attend_;
};

}  // namespace penstock::python
