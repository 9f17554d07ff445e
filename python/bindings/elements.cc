#include "elements.h"

#include <nanobind/stl/optional.h>

#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/stages/collate.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

nb::object checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// Makes the objects of leaves. One capsule keeps the memory of all of them.
class LeafMaker {
 public:
  // `owner` null: arrays are copies.
  LeafMaker(std::shared_ptr<void> owner, bool read_only)
      : owner_(std::move(owner)), read_only_(read_only) {}

  // A leaf of one element.
  PyObject* make(const Nest& nest, size_t place, const std::byte* data,
                 std::span<const int64_t> shape) {
    const Nest::LeafForm& form = nest.leaves[place];
    const char* text = reinterpret_cast<const char*>(data);
    switch (form.kind) {
      case LeafKind::kBytes:
        return PyBytes_FromStringAndSize(text, shape[0]);
      case LeafKind::kText: {
        PyObject* made = PyUnicode_DecodeUTF8(text, shape[0], nullptr);
        if (made == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeError) != 0) {
          PyErr_Clear();
          throw Error(Code::kDataLoss, "element", "'" + name(nest, place) + "' is not UTF-8");
        }
        return made;
      }
      case LeafKind::kColumn:
        return column(ColumnBlock::read(data, static_cast<uint64_t>(shape[0]), owner_));
      case LeafKind::kRagged:
        return ragged(nest, place, data, shape);
      case LeafKind::kDense:
        break;
    }
    if (!shape.empty()) return array(nest, place, data, shape, &PyArray_Type);
    return PyArray_Scalar(const_cast<std::byte*>(data), descr(nest, place), nullptr);
  }

  // An array of a leaf's dtype.
  PyObject* array(const Nest& nest, size_t place, const std::byte* data,
                  std::span<const int64_t> shape, PyTypeObject* type) {
    PyArray_Descr* of = descr(nest, place);
    const bool copied = owner_ == nullptr;
    const bool aligned = reinterpret_cast<uintptr_t>(data) % PyDataType_ELSIZE(of) == 0;
    const int flags = NPY_ARRAY_C_CONTIGUOUS | (aligned ? NPY_ARRAY_ALIGNED : 0) |
                      (read_only_ ? 0 : NPY_ARRAY_WRITEABLE);
    Py_INCREF(of);
    Owned made(PyArray_NewFromDescr(
        type, of, static_cast<int>(shape.size()), reinterpret_cast<const npy_intp*>(shape.data()),
        nullptr, copied ? nullptr : const_cast<std::byte*>(data), copied ? 0 : flags, nullptr));
    if (!made) return nullptr;
    auto* view = reinterpret_cast<PyArrayObject*>(made.get());
    if (copied) {
      const auto bytes = static_cast<size_t>(PyArray_NBYTES(view));
      if (bytes > 0) std::memcpy(PyArray_DATA(view), data, bytes);
      return made.release();
    }
    if (!capsule_) capsule_ = Owned(owner_capsule(owner_));
    if (!capsule_ || PyArray_SetBaseObject(view, Py_NewRef(capsule_.get())) != 0) return nullptr;
    return made.release();
  }

  // Rows of different sizes, as penstock.Ragged. Its arrays are views of the block's memory.
  PyObject* column(const Block& rows) const;

 private:
  static std::string name(const Nest& nest, size_t place) {
    return nest.spec->leaves()[place].name;
  }

  static PyArray_Descr* descr(const Nest& nest, size_t place) {
    PyObject* known = nest.leaves[place].descr.get();
    if (known == nullptr) {
      throw Error(Code::kInvalidArgument, "element",
                  "'" + name(nest, place) +
                      "' is bfloat16, which NumPy has from the package "
                      "ml_dtypes: install that");
    }
    return reinterpret_cast<PyArray_Descr*>(known);
  }

  PyObject* ragged(const Nest& nest, size_t place, const std::byte* data,
                   std::span<const int64_t> shape) {
    PyObject* type = helper("penstock.base.ragged", "RaggedArray");
    if (type == nullptr) return nullptr;
    Owned made(array(nest, place, data, shape, reinterpret_cast<PyTypeObject*>(type)));
    if (!made || PyObject_SetAttrString(made.get(), "axes", nest.leaves[place].axes.get()) != 0) {
      return nullptr;
    }
    return made.release();
  }

  std::shared_ptr<void> owner_;
  bool read_only_;
  Owned capsule_;
};

// Puts a nest together; leaf(place) makes the objects.
template <class F>
PyObject* build(const Nest& nest, size_t& at, F& leaf) {
  const Nest::Node& node = nest.nodes[at++];
  switch (node.kind) {
    case '.':
      return leaf(node.leaf);
    case '{': {
      Owned made(PyDict_New());
      for (uint32_t i = 0; made && i < node.count; ++i) {
        PyObject* key = nest.nodes[at].key.get();
        Owned item(build(nest, at, leaf));
        if (!item || PyDict_SetItem(made.get(), key, item.get()) != 0) return nullptr;
      }
      return made.release();
    }
    case '[': {
      Owned made(PyList_New(node.count));
      for (uint32_t i = 0; made && i < node.count; ++i) {
        PyObject* item = build(nest, at, leaf);
        if (item == nullptr) return nullptr;
        PyList_SET_ITEM(made.get(), i, item);
      }
      return made.release();
    }
    default: {
      // The same as tuple.__new__(cls, items), which _make of a named tuple calls.
      auto* type = reinterpret_cast<PyTypeObject*>(node.type.get());
      Owned made(type == nullptr ? PyTuple_New(node.count) : type->tp_alloc(type, node.count));
      for (uint32_t i = 0; made && i < node.count; ++i) {
        PyObject* item = build(nest, at, leaf);
        if (item == nullptr) return nullptr;
        PyTuple_SET_ITEM(made.get(), i, item);
      }
      return made.release();
    }
  }
}

template <class F>
nb::object built(const Nest& nest, F leaf) {
  size_t at = 0;
  return checked(build(nest, at, leaf));
}

// A leaf that is not fixed, of all rows: its values one after the other, and their offsets.
PyObject* ragged_column(const Nest& nest, size_t place, const Tensor& values, const Tensor& offsets,
                        const Tensor* dims, LeafMaker& maker) {
  static constexpr const char* kKinds[] = {"array", "array", "bytes", "str"};
  PyObject* of = helper("penstock.base.ragged", "of_block");
  if (of == nullptr) return nullptr;
  Owned all(maker.array(nest, place, values.data(), values.shape(), &PyArray_Type));
  auto integers = [](const Tensor& tensor) {
    PyObject* made = PyArray_SimpleNewFromData(
        static_cast<int>(tensor.ndim()), reinterpret_cast<const npy_intp*>(tensor.shape().data()),
        NPY_INT64, tensor.data());
    PyObject* owner = made == nullptr ? nullptr : owner_capsule(tensor.owner());
    if (owner == nullptr || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made), owner)) {
      Py_XDECREF(made);
      return Owned();
    }
    return Owned(made);
  };
  Owned begins = integers(offsets);
  Owned shapes = dims == nullptr ? Owned::borrow(Py_None) : integers(*dims);
  Owned kind(PyUnicode_FromString(kKinds[static_cast<size_t>(nest.leaves[place].kind)]));
  Owned axes = nest.leaves[place].axes ? Owned::borrow(nest.leaves[place].axes.get())
                                       : Owned(PyTuple_New(0));
  if (!all || !begins || !shapes || !kind || !axes) return nullptr;
  return PyObject_CallFunctionObjArgs(of, all.get(), begins.get(), kind.get(), shapes.get(),
                                      axes.get(), nullptr);
}

PyObject* LeafMaker::column(const Block& rows) const {
  const Example columns = rows.batch();
  LeafMaker maker(columns[0].second.owner(), owner_ != nullptr && read_only_);
  const Tensor* dims = columns.size() > 2 ? &columns[2].second : nullptr;
  return ragged_column(*nest_of(rows.spec()), 0, columns[0].second, columns[1].second, dims, maker);
}

}  // namespace

nb::object element_object(const Chunk& in, uint32_t row, const std::shared_ptr<void>& owner,
                          bool read_only) {
  release_references();
  NestRef nest = nest_of(in.spec());
  LeafMaker maker(owner, read_only);
  return built(*nest, [&](size_t place) {
    return maker.make(*nest, place, in.at(place, row), in.shape(place, row));
  });
}

nb::object batch_object(const Block& block) {
  release_references();
  NestRef nest = nest_of(block.spec());
  const Example columns = block.batch();
  // The tensors of a leaf are consecutive.
  std::vector<size_t> first;
  size_t count = 0;
  for (const Leaf& leaf : block.spec()->leaves()) {
    first.push_back(count);
    count += leaf.fixed() ? 1 : leaf.deep() ? 3 : 2;
  }
  if (count != columns.size()) {
    throw Error(Code::kInvalidArgument, "batch",
                "two leaves have the same name in " + block.spec()->to_string());
  }
  LeafMaker maker(columns.empty() ? nullptr : columns[0].second.owner(), false);
  return built(*nest, [&](size_t place) {
    const Leaf& leaf = block.spec()->leaves()[place];
    const Tensor& values = columns[first[place]].second;
    if (leaf.fixed()) {
      return maker.array(*nest, place, values.data(), values.shape(), &PyArray_Type);
    }
    const Tensor* dims = leaf.deep() ? &columns[first[place] + 2].second : nullptr;
    return ragged_column(*nest, place, values, columns[first[place] + 1].second, dims, maker);
  });
}

nb::object spec_object(const SpecRef& spec, nb::object leaf) {
  static constexpr const char* kKinds[] = {"array", "array", "bytes", "str", "rows", "object"};
  const NestRef nest = nest_of(spec);
  return built(*nest, [&](size_t place) {
    const Nest::LeafForm& form = nest->leaves[place];
    nb::list shape;
    for (npy_intp length : form.shape) {
      length < 0 ? shape.append(nb::none()) : shape.append(nb::int_(length));
    }
    const std::string& name = spec->leaves()[place].name;
    const nb::object dtype = form.descr ? nb::borrow(form.descr.get()) : nb::none();
    return leaf(name.c_str(), kKinds[static_cast<size_t>(form.kind)], dtype, nb::tuple(shape))
        .release()
        .ptr();
  });
}

nb::object row_object(const Block& block, uint64_t row) {
  release_references();
  NestRef nest = nest_of(block.spec());
  const Example element = block.row(row);
  LeafMaker maker(element.empty() ? nullptr : element[0].second.owner(), false);
  return built(*nest, [&](size_t place) {
    const Tensor& tensor = element[place].second;
    return maker.make(*nest, place, tensor.data(), tensor.shape());
  });
}

// ---- blocks as bytes ---------------------------------------------------------------------------

namespace {

// (spec, block): elements in the format of batches, caches and snapshots.
nb::tuple pack_elements(nb::iterable elements, bool batch) {
  Scratch scratch;
  using Lengths = Collector::Lengths;
  Collector rows(scratch, batch ? Lengths::kRagged : Lengths::kAny, nullptr);
  rows.begin(nullptr);
  std::array<uint64_t, Chunk::kRows> positions;
  std::iota(positions.begin(), positions.end(), 0);
  nb::object each = checked(PyObject_GetIter(elements.ptr()));
  for (bool more = true; more;) {
    Chunk& chunk = rows.add(positions);
    for (uint32_t row = 0; row < Chunk::kRows; ++row) {
      // The only reference, so a fresh array is not copied.
      Owned value(more ? PyIter_Next(each.ptr()) : nullptr);
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      more = static_cast<bool>(value);
      if (more) {
        put_element(value.get(), chunk, row, scratch);
      } else {
        chunk.fail(row, {});  // there is no such element
      }
    }
    for (uint64_t& position : positions) position += Chunk::kRows;
  }
  if (!rows.settle()) {
    throw Error(Code::kInvalidArgument, "pack_elements", "no elements: their schema is unknown");
  }
  BlockLayout layout = rows.layout(rows.rows());
  nb::object block = checked(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(layout.bytes())));
  auto* to = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(block.ptr()));
  std::memset(to, 0, layout.bytes());  // gaps between columns are written to files, too
  rows.write(layout, to);
  auto spec = rows.spec()->bytes();
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(spec.data()), spec.size()), block);
}

nb::object unpack_block(nb::bytes spec, uint64_t rows, nb::object block,
                        std::optional<uint64_t> row) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(block.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> held(&buffer, PyBuffer_Release);
  const auto bytes = static_cast<size_t>(buffer.len);
  Tensor copy = Tensor::make(DType::kUint8, {static_cast<int64_t>(bytes)});
  if (bytes > 0) std::memcpy(copy.data(), buffer.buf, bytes);
  auto known = std::make_shared<ElementSpec>(
      std::span(reinterpret_cast<const std::byte*>(spec.c_str()), spec.size()));
  Block elements(std::move(known), rows, copy.data(), bytes, copy.owner());
  return row ? row_object(elements, *row) : batch_object(elements);
}

}  // namespace

HeldRow held_row(PyObject* value) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(nullptr, 1);
  put_element(value, chunk, 0, scratch);
  HeldRow row;
  row.take(chunk, 0);
  return row;
}

Block block_in(nb::bytes spec, uint64_t rows, nb::bytes block) {
  auto known = std::make_shared<ElementSpec>(
      std::span(reinterpret_cast<const std::byte*>(spec.c_str()), spec.size()));
  // Bytes objects are immutable, and a source's elements are not written to.
  auto* data = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(block.ptr()));
  return {std::move(known), rows, data, block.size(), share(block.ptr())};
}

void bind_elements(nb::module_& m) {
  m.def("pack_elements", &pack_elements, nb::arg("elements"), nb::arg("batch") = true,
        R"(Elements as (spec, block): bytes in the format of batches and files.

Arrays whose lengths differ make up a ragged leaf of a batch; without one they stay arrays.)");
  m.def("unpack_block", &unpack_block, nb::arg("spec"), nb::arg("rows"), nb::arg("block"),
        nb::arg("row") = nb::none(),
        R"(The batch that a block of so many elements is, or the element in one row of it.

The block is copied once; what comes out are views of that copy.)");
}

}  // namespace penstock::python
