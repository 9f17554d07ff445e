#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "elements.h"
#include "leaf_value.h"
#include "penstock/base/error.h"
#include "references.h"
#include "values.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Bytes of the largest row of a fixed leaf that is copied into a free column; larger ones are
// views.
constexpr size_t kSmallRow = 1024;

// Traverses a value along a nest, and checks whether the value has this form.
class Putter {
 public:
  // `out` nullptr: only checks.
  Putter(const Nest& nest, Chunk* out, uint32_t row, Scratch& scratch)
      : nest_(nest), out_(out), row_(row), scratch_(scratch) {}

  // False: the value has another form.
  bool put(PyObject* value) {
    at_ = 0;
    return node(value, only_ours(value));
  }

 private:
  // `unique`: only the caller refers to it. User code and other threads may run, and may replace an
  // item that is not unique, so the item is held.
  bool node(PyObject* value, bool unique) {
    const Owned held = unique ? Owned() : Owned::borrow(value);
    const Nest::Node& node = nest_.nodes[at_++];
    switch (node.kind) {
      case '.':
        return leaf(node.leaf, value, unique);
      case '{':
        return PyDict_Check(value) && dict(node, value, unique);
      case '[':
        return PyList_Check(value) && sequence(node, value, unique);
      case '(':
        return PyTuple_Check(value) && (PyTuple_CheckExact(value) || !is_namedtuple(value)) &&
               sequence(node, value, unique);
      default:
        return PyTuple_Check(value) && !PyTuple_CheckExact(value) && is_same_class(node, value) &&
               sequence(node, value, unique);
    }
  }

  bool dict(const Nest::Node& node, PyObject* value, bool unique) {
    if (PyDict_GET_SIZE(value) != static_cast<Py_ssize_t>(node.count)) return false;
    Py_ssize_t place = 0;
    PyObject *key, *item;
    for (uint32_t i = 0; i < node.count; ++i) {
      if (PyDict_Next(value, &place, &key, &item) == 0) return false;
      if (!PyUnicode_Check(key)) return false;
      if (PyUnicode_Compare(key, nest_.nodes[at_].key.get()) != 0) return false;
      if (!this->node(item, unique && only_ours(item))) return false;
    }
    return true;
  }

  bool sequence(const Nest::Node& node, PyObject* value, bool unique) {
    // User code that makes an array from an item may change the list.
    const bool list = PyList_Check(value);
    const auto count = static_cast<Py_ssize_t>(node.count);
    if ((list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value)) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (list && i >= PyList_GET_SIZE(value)) return false;
      PyObject* item = list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i);
      if (!this->node(item, unique && only_ours(item))) return false;
    }
    return true;
  }

  static bool is_same_class(const Nest::Node& node, PyObject* value) {
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    if (type == node.type.get()) return true;
    // Its class may not be importable by name, such as a class defined in a function.
    auto equal = [&](const char* name, PyObject* to) {
      Owned own(PyObject_GetAttrString(type, name));
      if (!own) PyErr_Clear();
      return own && PyObject_RichCompareBool(own.get(), to, Py_EQ) == 1;
    };
    return equal("_fields", node.fields.get()) && equal("__qualname__", node.name.get()) &&
           equal("__module__", node.module.get());
  }

  bool leaf(size_t place, PyObject* value, bool unique) {
    const Nest::LeafForm& form = nest_.leaves[place];
    LeafValue taken;
    if (is_container(value) || !taken.take(value, why_)) return false;
    if (taken.kind != form.kind || taken.dtype != form.dtype) return false;
    if (taken.kind == LeafKind::kBytes || taken.kind == LeafKind::kText) {
      return string(place, taken);
    }
    if (taken.kind == LeafKind::kColumn) return column(place, value);
    if (taken.array != nullptr) return array(place, form, taken, unique);
    if (!form.shape.empty()) return false;
    alignas(16) std::byte number[32];
    if (!taken.write_number(number)) return false;
    if (out_ != nullptr) fixed(place, form, number);
    return true;
  }

  bool string(size_t place, const LeafValue& taken) {
    const char* data;
    Py_ssize_t bytes;
    if (!taken.string(data, bytes)) return false;
    if (out_ == nullptr) return true;
    const int64_t shape = bytes;
    out_->view(place, row_, reinterpret_cast<const std::byte*>(data), {&shape, 1});
    out_->keep(share(taken.scalar), static_cast<uint64_t>(bytes));
    return true;
  }

  // A penstock.Ragged.
  bool column(size_t place, PyObject* value) {
    if (out_ == nullptr) return true;
    const std::span<const std::byte> bytes = ragged_bytes(value, scratch_);
    const auto shape = static_cast<int64_t>(bytes.size());
    out_->view(place, row_, bytes.data(), {&shape, 1});
    return true;
  }

  bool array(size_t place, const Nest::LeafForm& form, LeafValue& taken, bool unique) {
    PyArrayObject* array = taken.array;
    const auto axes = static_cast<size_t>(PyArray_NDIM(array));
    if (axes != form.shape.size()) return false;
    for (size_t axis = 0; axis < axes; ++axis) {
      if (form.shape[axis] >= 0 && form.shape[axis] != PyArray_DIM(array, axis)) return false;
    }
    if (form.kind == LeafKind::kRagged && !differ(form, taken.axes.get())) return false;
    if (out_ == nullptr) return true;
    const bool plain = PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISNOTSWAPPED(array);
    if (form.fixed && (form.bytes <= kSmallRow || out_->bound(place))) {
      if (plain) {
        fixed(place, form, data_of(array));
      } else {
        copy_into(out_->dense(place) + row_ * out_->stride(place), array);
      }
      return true;
    }
    PyArrayObject* root;
    CopyReason reason;
    const bool ours = plain && !taken.made && owns_its_memory(array, unique, root, reason);
    const std::byte* data = data_of(array);
    if (ours) {
      out_->keep(share(reinterpret_cast<PyObject*>(array)),
                 static_cast<uint64_t>(PyArray_NBYTES(array)));
    } else {
      std::byte* copy = scratch_.take(static_cast<size_t>(PyArray_NBYTES(array)));
      if (!plain) {
        copy_into(copy, array);
      } else if (PyArray_NBYTES(array) > 0) {
        std::memcpy(copy, data, static_cast<size_t>(PyArray_NBYTES(array)));
      }
      data = copy;
    }
    static_assert(sizeof(npy_intp) == sizeof(int64_t));
    out_->view(place, row_, data, {reinterpret_cast<const int64_t*>(PyArray_DIMS(array)), axes});
    return true;
  }

  // Whether these axes may differ. A chunk whose elements declare different axes allows all.
  bool differ(const Nest::LeafForm& form, PyObject* axes) const {
    if (out_ == nullptr) {
      const int same = PyObject_RichCompareBool(axes, form.axes.get(), Py_EQ);
      if (same < 0) PyErr_Clear();  // they are not numbers: an error when the form is made
      return same == 1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(axes); ++i) {
      const Py_ssize_t axis = PyNumber_AsSsize_t(PyTuple_GET_ITEM(axes, i), nullptr);
      if (axis == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
      if (axis < 0 || static_cast<size_t>(axis) >= form.shape.size()) return false;
      if (form.shape[static_cast<size_t>(axis)] >= 0) return false;
    }
    return true;
  }

  static const std::byte* data_of(PyArrayObject* array) {
    return static_cast<const std::byte*>(PyArray_DATA(array));
  }

  void fixed(size_t place, const Nest::LeafForm& form, const std::byte* data) {
    std::byte* to = out_->dense(place) + row_ * out_->stride(place);
    if (form.bytes > 0) std::memcpy(to, data, form.bytes);
  }

  // Copies an array of any strides and byte order to memory in C order.
  static void copy_into(std::byte* to, PyArrayObject* array) {
    PyArray_Descr* descr = PyArray_DescrNewByteorder(PyArray_DESCR(array), NPY_NATIVE);
    if (descr == nullptr) throw nb::python_error();
    Owned over(PyArray_NewFromDescr(&PyArray_Type, descr, PyArray_NDIM(array), PyArray_DIMS(array),
                                    nullptr, to, NPY_ARRAY_CARRAY, nullptr));
    if (!over || PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(over.get()), array) != 0) {
      throw nb::python_error();
    }
  }

  const Nest& nest_;
  Chunk* out_;
  uint32_t row_;
  Scratch& scratch_;
  size_t at_ = 0;
  std::string why_;
};

// Consecutive elements have the same spec, which is built once for all of them. Guarded by the GIL;
// never destroyed.
SpecRef& last_spec() {
  static auto* last = new SpecRef;
  return *last;
}

}  // namespace

SpecRef spec_of(PyObject* value, const SpecRef& known) {
  if (known != nullptr) {
    const SpecRef kept = known;  // user code may change it
    Scratch unused;
    if (Putter(*nest_of(kept), nullptr, 0, unused).put(value)) return kept;
  }
  return spec_of(value);
}

void put_element(PyObject* value, Chunk& out, uint32_t row, Scratch& scratch) {
  release_references();
  if (out.spec() == nullptr) {
    SpecRef spec = spec_of(value, last_spec());
    last_spec() = spec;
    out.settle(spec);
  }
  if (Putter(*nest_of(out.spec()), &out, row, scratch).put(value)) return;
  SpecRef own = spec_of(value);
  if (!out.settle(own)) {
    throw Error(Code::kInvalidArgument, "element",
                "elements must be alike: this one is " + describe(*nest_of(own)) +
                    ", those before are " + describe(*nest_of(out.spec())) +
                    advice_on_lists(*out.spec(), *own));
  }
  if (!Putter(*nest_of(out.spec()), &out, row, scratch).put(value)) {
    throw Error(Code::kInternal, "element", "a value that is not of its own spec");
  }
}

}  // namespace penstock::python
