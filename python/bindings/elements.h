#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "nest.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/streams/held_back.h"

namespace penstock::python {

// Converts values of user code to the leaves of chunks, and leaves to values. REQUIRED: the GIL.
// Errors: penstock::Error as stated, and nanobind::python_error for exceptions of Python.
//
// | a value                                     | leaf    | is returned as
// | array, NumPy's or Python's number, bool,    | kDense  | array; a NumPy scalar where the shape
// | tensor on the CPU, what has __array__       |         | is ()
// | penstock.ragged(array)                      | kRagged | the same
// | bytes, str                                  | kBytes, | the same
// |                                             | kText   |
// | dict with keys of str, tuple, list, named   | nest    | the same (see nest.h)
// | tuple of these                              |         |

// The spec of a value. Error kInvalidArgument: a part of the value cannot be a leaf; the text has
// its place, its type and what to do.
SpecRef spec_of(PyObject* value);
// The same, but returns `known` if it is equal. `known` may be null.
SpecRef spec_of(PyObject* value, const SpecRef& known);

// Writes a value of user code into a row. Sets the chunk's spec (Chunk::settle). A bound column
// gets a copy. In a free column small rows are copied and large ones are views: of `value`'s own
// memory if nothing else refers to it, otherwise of a copy in `scratch`. In the first case the
// chunk keeps `value`, and releases it with or without the GIL. REQUIRED: the caller has one
// reference to `value`.
// Error kInvalidArgument: as spec_of; or the schema differs from that of the chunk's other
// elements, and the text names both. The row is then undefined.
void put_element(PyObject* value, Chunk& out, uint32_t row, Scratch& scratch);

// A value as one element. Errors as for put_element.
HeldRow held_row(PyObject* value);

// The element in a row, for user code. With an `owner`, which keeps the chunk's memory alive and
// unchanged, large arrays are views, `read_only` or not; without, all are copies. REQUIRED: the row
// is alive. Error kDataLoss: a text is not UTF-8.
nanobind::object element_object(const Chunk& in, uint32_t row, const std::shared_ptr<void>& owner,
                                bool read_only);

// A block as a batch: the nest of arrays (rows, ...) that are views of the block, and
// penstock.Ragged for leaves that are not fixed. Error kInvalidArgument: leaves whose names
// collide.
nanobind::object batch_object(const Block& block);
// One row of a block as an element: arrays are views of the block. Errors: kInvalidArgument (no
// such row), kDataLoss as above.
nanobind::object row_object(const Block& block, uint64_t row);

// The nest of a spec, with the result of `leaf(name, kind, dtype or None, shape)` for each leaf.
// The kinds, in LeafKind's order: "array", "array", "bytes", "str", "rows", "object". A length that
// differs between elements is None.
nanobind::object spec_object(const SpecRef& spec, nanobind::object leaf);

// The block in bytes objects of pack_elements, which it shares. Error kDataLoss: invalid bytes.
Block block_in(nanobind::bytes spec, uint64_t rows, nanobind::bytes block);

}  // namespace penstock::python
