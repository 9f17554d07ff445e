#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "elements.h"
#include "leaf_value.h"
#include "penstock/base/error.h"
#include "values.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

constexpr const char* kOperation = "element";

// Traverses a value and writes its spec.
class SpecWriter {
 public:
  SpecRef write(PyObject* value) {
    flat_ = PyDict_Check(value) || !is_container(value);
    node(value, "", 0);
    const bool unnamed = leaves_.size() == 1 && leaves_[0].name.empty();
    if (flat_ && unnamed != PyDict_Check(value)) nest_.clear();
    check_names();
    return std::make_shared<ElementSpec>(std::move(leaves_), std::move(nest_));
  }

 private:
  [[noreturn]] static void refuse(const std::string& path, const std::string& why) {
    throw Error(Code::kInvalidArgument, kOperation,
                (path.empty() ? "the value" : "'" + path + "'") + " " + why);
  }

  static std::string below(const std::string& path, const std::string& name, int depth) {
    return depth == 0 ? name : path + "/" + name;
  }

  void node(PyObject* value, const std::string& path, int depth) {
    LeafValue leaf;
    std::string why;
    if (!is_container(value)) {
      if (!leaf.take(value, why)) refuse(path, why);
      add(leaf, path);
      return;
    }
    if (depth > 0) flat_ = false;
    if (depth >= kDeepestNest) refuse(path, "is nested too deeply, or in itself");
    if (PyDict_Check(value)) return dict(value, path, depth);
    if (is_namedtuple(value)) return named_tuple(value, path, depth);
    const bool list = PyList_Check(value);
    nest_ += list ? '[' : '(';
    size_t place = 0;
    each_of(value, [&](PyObject*, PyObject* item) {
      node(item, below(path, std::to_string(place++), depth), depth + 1);
    });
    nest_ += list ? ']' : ')';
  }

  // User code that makes an array from an item may change a list.
  template <class Use>
  static void each_of(PyObject* value, const Use& use) {
    const Parts parts(value, false);
    if (!parts) throw nb::python_error();
    parts.each([&](PyObject* key, PyObject* part, bool) {
      use(key, part);
      return true;
    });
  }

  void dict(PyObject* value, const std::string& path, int depth) {
    nest_ += '{';
    each_of(value, [&](PyObject* key, PyObject* item) {
      if (!PyUnicode_Check(key)) {
        refuse(path, "has a key of type " + std::string(Py_TYPE(key)->tp_name) +
                         ": keys are str, so that leaves have names");
      }
      node(item, below(path, name(key, path), depth), depth + 1);
    });
    nest_ += '}';
  }

  void named_tuple(PyObject* value, const std::string& path, int depth) {
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    Owned module(PyObject_GetAttrString(type, "__module__"));
    Owned called(PyObject_GetAttrString(type, "__qualname__"));
    Owned fields(PyObject_GetAttrString(type, "_fields"));
    if (!module || !called || !fields) throw nb::python_error();
    bool right = PyUnicode_Check(module.get()) && PyUnicode_Check(called.get()) &&
                 PyTuple_Check(fields.get()) &&
                 PyTuple_GET_SIZE(fields.get()) == PyTuple_GET_SIZE(value);
    for (Py_ssize_t i = 0; right && i < PyTuple_GET_SIZE(value); ++i) {
      right = PyUnicode_Check(PyTuple_GET_ITEM(fields.get(), i));
    }
    if (!right) refuse(path, "is a tuple with _fields that is no named tuple");
    nest_ += '<';
    name(module.get(), path);
    name(called.get(), path);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      std::string field = name(PyTuple_GET_ITEM(fields.get(), i), path);
      node(PyTuple_GET_ITEM(value, i), below(path, field, depth), depth + 1);
    }
    nest_ += '>';
  }

  // Writes a key into the nest.
  std::string name(PyObject* text, const std::string& path) {
    Py_ssize_t bytes;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
    if (utf8 == nullptr) {
      PyErr_Clear();
      refuse(path, "has a key that has no UTF-8");
    }
    write_string(nest_, utf8, static_cast<size_t>(bytes));
    return {utf8, static_cast<size_t>(bytes)};
  }

  void add(LeafValue& value, const std::string& path) {
    if (leaves_.size() == ElementSpec::kMaxLeaves) {
      refuse(path, "is one of more than " + std::to_string(ElementSpec::kMaxLeaves) +
                       " leaves: give a list of numbers as an array, np.asarray(numbers)");
    }
    Leaf leaf{path, value.kind, value.dtype, {}};
    if (value.array != nullptr) {
      const int axes = PyArray_NDIM(value.array);
      if (static_cast<size_t>(axes) > ElementSpec::kMaxAxes) refuse(path, "has too many axes");
      leaf.shape.assign(PyArray_DIMS(value.array), PyArray_DIMS(value.array) + axes);
      if (value.kind == LeafKind::kRagged) differ(leaf.shape, value.axes.get(), path);
    } else if (value.kind == LeafKind::kColumn) {
      leaf.shape = {-1};
    } else if (value.kind != LeafKind::kDense) {
      const char* data;
      Py_ssize_t bytes;
      if (!value.string(data, bytes)) refuse(path, "is a str that has no UTF-8: use bytes");
      leaf.shape = {-1};
    } else {
      alignas(16) std::byte space[32];
      if (!value.write_number(space)) {
        refuse(path, "is an int that is larger than an int64: use np.uint64 or a float");
      }
    }
    leaves_.push_back(std::move(leaf));
    nest_ += '.';
  }

  static void differ(Shape& shape, PyObject* axes, const std::string& path) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(axes); ++i) {
      const Py_ssize_t axis = PyNumber_AsSsize_t(PyTuple_GET_ITEM(axes, i), nullptr);
      if (axis == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
      if (axis < 0 || static_cast<size_t>(axis) >= shape.size()) {
        refuse(path, "is ragged along an axis that it does not have");
      }
      shape[static_cast<size_t>(axis)] = -1;
    }
  }

  // In C++ a batch's tensors are found by name, and a leaf that is not fixed has several tensors.
  void check_names() const {
    std::set<std::string> names;
    auto take = [&](const std::string& taken) {
      if (names.insert(taken).second) return;
      throw Error(Code::kInvalidArgument, kOperation,
                  "two leaves would be called '" + taken + "': give one another key");
    };
    for (const Leaf& leaf : leaves_) {
      take(leaf.name);
      if (!leaf.fixed()) take(leaf.name + "/offsets");
      if (leaf.deep()) take(leaf.name + "/dims");
    }
  }

  bool flat_ = false;  // so far a dict of leaves, or one leaf
  std::vector<Leaf> leaves_;
  std::string nest_;
};

}  // namespace

SpecRef spec_of(PyObject* value) { return SpecWriter().write(value); }

}  // namespace penstock::python
