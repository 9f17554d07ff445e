#include "ragged_bytes.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "leaf_value.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/element/column_block.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

[[noreturn]] void refuse_ragged(const std::string& why) {
  throw Error(Code::kInvalidArgument, "element", "a penstock.Ragged " + why);
}

Owned part(PyObject* ragged, const char* name) {
  Owned made(PyObject_GetAttrString(ragged, name));
  if (!made) throw nb::python_error();
  return made;
}

// A part as an array in C order and the machine's byte order, of this type (NPY_NOTYPE: its own).
Owned plain_array(PyObject* ragged, const char* name, int type) {
  PyArray_Descr* descr = type == NPY_NOTYPE ? nullptr : PyArray_DescrFromType(type);
  // FromAny itself ignores NOTSWAPPED.
  Owned made(PyArray_CheckFromAny(part(ragged, name).get(), descr, 0, 0,
                                  NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | NPY_ARRAY_NOTSWAPPED,
                                  nullptr));
  if (made) return made;
  nb::python_error error;
  if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw error;
  refuse_ragged(std::string("whose ") + name + " are none: " + error.what());
}

// The numbers in `axes`; a number that is too large belongs to no axis.
std::vector<Py_ssize_t> numbers_in(PyObject* axes) {
  std::vector<Py_ssize_t> numbers;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(axes); ++i) {
    PyObject* item = PyTuple_GET_ITEM(axes, i);
    if (!PyIndex_Check(item)) refuse_ragged("along axes that are no integers");
    const Py_ssize_t number = PyNumber_AsSsize_t(item, nullptr);
    if (number == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse_ragged("along axes that are no integers");
    }
    numbers.push_back(number);
  }
  return numbers;
}

PyArrayObject* array_in(const Owned& made) { return reinterpret_cast<PyArrayObject*>(made.get()); }

}  // namespace

std::span<const std::byte> ragged_bytes(PyObject* ragged, Scratch& scratch) {
  const Owned values = plain_array(ragged, "values", NPY_NOTYPE);
  const Owned offsets = plain_array(ragged, "offsets", NPY_INT64);
  const bool shaped = part(ragged, "dims").get() != Py_None;
  const Owned dims = shaped ? plain_array(ragged, "dims", NPY_INT64) : Owned();
  const Owned axes = part(ragged, "axes");
  const Owned kind = part(ragged, "kind");
  const char* kind_name = PyUnicode_Check(kind.get()) ? PyUnicode_AsUTF8(kind.get()) : nullptr;
  if (kind_name == nullptr || !PyTuple_Check(axes.get())) refuse_ragged("that is none");
  const std::vector<Py_ssize_t> named = numbers_in(axes.get());
  // Its parts may have been replaced after its construction.
  if (PyArray_NDIM(array_in(values)) == 0) refuse_ragged("whose values have no axis");
  if (PyArray_NDIM(array_in(offsets)) != 1 || PyArray_DIM(array_in(offsets), 0) == 0) {
    refuse_ragged("whose offsets are not of shape (rows + 1,)");
  }
  const auto rows = static_cast<uint64_t>(PyArray_DIM(array_in(offsets), 0) - 1);
  const auto* last = static_cast<const int64_t*>(PyArray_DATA(array_in(offsets))) + rows;
  if (*last != PyArray_DIM(array_in(values), 0)) refuse_ragged("whose offsets and values disagree");
  if (shaped && (PyArray_NDIM(array_in(dims)) != 2 || PyArray_DIM(array_in(dims), 1) == 0 ||
                 PyArray_DIM(array_in(dims), 0) != static_cast<npy_intp>(rows) ||
                 PyArray_NDIM(array_in(values)) != 1)) {
    refuse_ragged("whose dims are not of shape (rows, axes), with flat values");
  }
  // With one axis they are redundant with the offsets.
  const bool deep = shaped && PyArray_DIM(array_in(dims), 1) > 1;

  LeafValue taken;
  std::string why;
  if (!taken.take(values.get(), why) || taken.array == nullptr)
    refuse_ragged("whose values " + why);
  Leaf leaf{"", LeafKind::kDense, taken.dtype, {}};
  if (kind_name[0] != 'a') {
    if (taken.dtype != DType::kUint8 || shaped || PyArray_NDIM(taken.array) != 1) {
      refuse_ragged("of strings whose values are not uint8 of one axis");
    }
    leaf.kind = kind_name[0] == 's' ? LeafKind::kText : LeafKind::kBytes;
    leaf.shape = {-1};
  } else if (deep) {
    // An axis that is not named may have one length in all rows, or may be undeclared.
    leaf.shape.assign(static_cast<size_t>(PyArray_DIM(array_in(dims), 1)), -1);
  } else {
    const npy_intp* shape = PyArray_DIMS(array_in(values));
    leaf.shape.assign(shape, shape + PyArray_NDIM(array_in(values)));
    leaf.shape[0] = -1;
  }
  if (leaf.kind == LeafKind::kDense && !named.empty()) {
    leaf.kind = LeafKind::kRagged;
    const auto* lengths =
        deep ? static_cast<const int64_t*>(PyArray_DATA(array_in(dims))) : nullptr;
    for (size_t axis = 1; deep && rows > 0 && axis < leaf.shape.size(); ++axis) {
      if (std::ranges::count(named, static_cast<Py_ssize_t>(axis)) == 0) {
        leaf.shape[axis] = lengths[axis];
      }
    }
    // Rows have their own shapes if an axis after the first differs.
    if (deep && !leaf.deep()) leaf.shape.back() = -1;
  }

  const ElementSpec spec({leaf});
  const auto bytes = static_cast<uint64_t>(PyArray_NBYTES(array_in(values)));
  const BlockLayout layout(spec, rows, {&bytes, 1});
  const uint64_t all = ColumnBlock::bytes_of(spec, layout);
  std::byte* to = scratch.take(all);
  std::byte* block = ColumnBlock::begin(spec, layout, to);
  const auto copy = [&](uint64_t place, const Owned& from) {
    const auto size = static_cast<size_t>(PyArray_NBYTES(array_in(from)));
    if (size != 0) std::memcpy(block + place, PyArray_DATA(array_in(from)), size);
  };
  copy(layout.offsets(0), offsets);
  if (deep) copy(layout.dims(0), dims);
  copy(layout.values(0), values);
  try {
    // Checks the offsets and shapes.
    (void)ColumnBlock::read(to, all, {std::shared_ptr<void>(), to});
  } catch (const Error& error) {
    refuse_ragged(std::string("that contradicts itself: ") + error.what());
  }
  return {to, all};
}

}  // namespace penstock::python
