#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "penstock/pipeline/api/dataset.h"

namespace penstock::python {

// Dataset.arrow, and the class ArrowTable: Arrow data behind capsules of the Arrow PyCapsule
// interface, or from its parts in a worker process.
void bind_arrow(nanobind::module_& m);
void bind_arrow_source(nanobind::class_<Dataset>& dataset);

}  // namespace penstock::python
