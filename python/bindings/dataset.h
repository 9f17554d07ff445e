#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/plan/plan.h"

namespace penstock::python {

// What a Loader and its workers share: a built Dataset, or the plan of a Python data set.
struct BuiltPlan {
  std::shared_ptr<const Plan> plan;
  // For a Loader over arrays, whose leaves are rows of bytes: the structure of a sample
  // (Sample::spec).
  std::vector<std::byte> sample;
  // For a Python data set, sampler or generator, whose samples PythonWorkers make: the number of
  // samples, which PythonLoader changes. Null: ChainWorkers run the plan.
  std::shared_ptr<std::atomic<uint64_t>> count;
};

// Error kInvalidArgument: there is no dtype of this name.
DType dtype_named(const std::string& name);

// The functions that make a Dataset from files, arrays, Python objects and other Datasets.
void bind_sources(nanobind::class_<Dataset>& dataset);

// Dataset.arrow, and the class ArrowTable: Arrow data behind capsules of the Arrow PyCapsule
// interface, or from its parts in a worker process.
void bind_arrow(nanobind::module_& m);
void bind_arrow_source(nanobind::class_<Dataset>& dataset);

}  // namespace penstock::python
