#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "penstock/pipeline/api/dataset.h"

namespace penstock::python {

// Error kInvalidArgument: there is no dtype of this name.
DType dtype_named(const std::string& name);

// The functions that make a Dataset from files, arrays, Python objects and other Datasets.
void bind_sources(nanobind::class_<Dataset>& dataset);

}  // namespace penstock::python
