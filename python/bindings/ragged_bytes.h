#pragma once

#include <Python.h>

#include <cstddef>
#include <span>

#include "penstock/pipeline/element/scratch.h"

namespace penstock::python {

// A penstock.Ragged as a ColumnBlock in `scratch`. With the GIL held. Errors: kInvalidArgument for
// invalid parts; nanobind::python_error for exceptions of Python.
std::span<const std::byte> ragged_bytes(PyObject* ragged, Scratch& scratch);

}  // namespace penstock::python
