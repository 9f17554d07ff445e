#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>

#include "penstock/pipeline/engine/consumer.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "task_values.h"

namespace penstock::python {

// Raises an exception of Python. With the GIL held.
[[noreturn]] void raise_exception(const nanobind::object& exception);

// Raises the failures of tickets at the consumer's place (Consumer::fail), as Python exceptions
// with worker, stage, epoch and index. One thread, with the GIL.
class FailureRaiser {
 public:
  // `python_workers`: PythonWorkers make the batches. `listed`: a sampler lists their indices. The
  // references outlive this.
  FailureRaiser(PlanEngine& engine, Consumer& consumer, TaskValues& values, bool python_workers,
                bool listed)
      : engine_(engine),
        consumer_(consumer),
        values_(values),
        python_workers_(python_workers),
        listed_(listed) {}

  // The failure of a task of the scheduler's current ticket.
  [[noreturn]] void raise(Task& task, const Ticket& ticket);
  [[noreturn]] void raise(const LoaderFailure& failure);

 private:
  nanobind::object index_of(const Ticket& ticket, uint32_t row);

  PlanEngine& engine_;
  Consumer& consumer_;
  TaskValues& values_;
  bool python_workers_, listed_;
};

}  // namespace penstock::python
