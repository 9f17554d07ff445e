#pragma once

#include <nanobind/nanobind.h>

#include "penstock/observe/analysis.h"

namespace penstock::python {

// What `analysis()` returns.
nanobind::dict dict_of(const Analysis& analysis);

}  // namespace penstock::python
