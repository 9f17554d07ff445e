#pragma once

#include <cstdint>
#include <span>

#include "numpy_api.h"
#include "penstock/memory/batch_layout.h"
#include "penstock/observe/counters.h"
#include "sample.h"

namespace penstock::python {

// The columns of a structure, in the order of Sample::arrays.
RowLayout layout_of(std::span<const std::byte> spec, uint64_t rows);

// Writes a sample's arrays into its row of the batch. False: a Python exception is set.
bool write_row(const Sample& sample, const RowLayout& layout, std::byte* base, uint64_t row,
               WorkerCounters& counters);

// The batch as Python objects over its columns' memory, whose owner is `owner` (borrowed; kept by
// every array). objects: a list with one list per 'o' column. nullptr: exception.
PyObject* batch_of(std::span<const std::byte> spec, std::span<std::byte* const> columns,
                   uint64_t rows, PyObject* owner, PyObject* objects);

}  // namespace penstock::python
