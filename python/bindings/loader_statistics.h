#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "penstock/observe/analysis.h"
#include "penstock/observe/snapshot.h"
#include "sample_settings.h"

namespace penstock {
class PlanEngine;
}

namespace penstock::python {

// The counters of a Loader's engine, for Python. Any thread, with the GIL.
class LoaderStatistics {
 public:
  // `python_workers`: PythonWorkers make the batches. Both references outlive this.
  LoaderStatistics(PlanEngine& engine, const SampleSettings& settings, bool python_workers)
      : engine_(engine), settings_(settings), python_workers_(python_workers) {}

  // All counters, by name.
  nanobind::dict stats() const;
  // For reports. `about`: what the engine does not know of the Loader.
  Snapshot snapshot(const nanobind::dict& about) const;

 private:
  std::vector<StageSnapshot> worker_stages() const;

  PlanEngine& engine_;
  const SampleSettings& settings_;
  bool python_workers_;
};

// An event as a tuple of numbers, and back: kind, begin, span and active time in nanoseconds, step,
// count.
nanobind::tuple tuple_of(const TraceEvent& event);
TraceEvent event_of(nanobind::handle tuple);

// What `analysis()` returns.
nanobind::dict dict_of(const Analysis& analysis);

}  // namespace penstock::python
