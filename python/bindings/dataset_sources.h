#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "penstock/pipeline/api/dataset.h"

namespace penstock::python {

// Error kInvalidArgument: there is none of this name.
DType dtype_named(const std::string& name);

// What makes a Dataset of files, arrays, Python objects and other Datasets.
void bind_sources(nanobind::class_<Dataset>& dataset);

}  // namespace penstock::python
