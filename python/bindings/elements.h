#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "nest.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/streams/held_row.h"

namespace penstock::python {

// Values of user code to the leaves of chunks, and leaves to values. All with the GIL held. Errors:
// penstock::Error as said, and nanobind::python_error for what Python raises (no memory, ...).
//
// | a value                                     | leaf    | comes back as
// | array, NumPy's or Python's number, bool,    | kDense  | array; a NumPy scalar where the shape
// | tensor on the CPU, what has __array__       |         | is ()
// | penstock.ragged(array)                      | kRagged | the same
// | bytes, str                                  | kBytes, | the same
// |                                             | kText   |
// | dict with keys of str, tuple, list, named   | nest    | the same (see nest.h)
// | tuple of these                              |         |

// The spec of a value. Error kInvalidArgument: it has something that is no leaf; says where, what
// and what to do.
SpecRef spec_of(PyObject* value);
// The same, and `known` itself if it is that one: no new one is made. `known` may be null.
SpecRef spec_of(PyObject* value, const SpecRef& known);

// Puts what user code returned into a row. Tells the chunk its spec (Chunk::settle). A bound column
// gets a copy; in a free one small rows are copied and large ones are views: of `value`'s own
// memory where nothing else leads there, which the chunk then keeps (it lets go of it with or
// without the GIL), else of a copy in `scratch`. For that, `value` is a reference of the caller's
// that is the only one it knows of.
// Error kInvalidArgument: as spec_of; or the element is not like the chunk's others, and both are
// named. The row is then undefined.
void put_element(PyObject* value, Chunk& out, uint32_t row, Scratch& scratch);

// A value as one element. Errors as of put_element.
HeldRow held_row(PyObject* value);

// The element in a row as user code sees it. Large arrays are views if there is an `owner` that
// keeps the chunk's memory alive and unwritten, `read_only` or not; without, all are copies.
// REQUIRED: the row is alive. Error kDataLoss: a text that is no UTF-8.
nanobind::object element_object(const Chunk& in, uint32_t row, const std::shared_ptr<void>& owner,
                                bool read_only);

// A block as a batch: the nest of arrays (rows, ...) that are views of the block, and
// penstock.Ragged for leaves that are not fixed. Error kInvalidArgument: leaves whose names
// collide.
nanobind::object batch_object(const Block& block);
// One row of it as an element: arrays are views of the block. Errors: kInvalidArgument (no such
// row), kDataLoss as above.
nanobind::object row_object(const Block& block, uint64_t row);

// The nest of elements of a spec, with `leaf(name, kind, dtype or None, shape)` in place of each
// leaf; kind as in LeafKind's order: "array", "array", "bytes", "str", "rows", "object". A length
// that differs is None.
nanobind::object spec_object(const SpecRef& spec, nanobind::object leaf);

// A block in bytes objects, as pack_elements makes them; it shares them. Error kDataLoss: it is
// none.
Block block_in(nanobind::bytes spec, uint64_t rows, nanobind::bytes block);

void bind_elements(nanobind::module_& m);

}  // namespace penstock::python
