#include "leaf_value.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <complex>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/block.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

constexpr const char* kRemedy =
    "; an element is arrays, numbers, bytes and str, in dicts, tuples and lists";

std::optional<DType> dtype_of_descr(PyArray_Descr* descr) {
  const auto bytes = PyDataType_ELSIZE(descr);
  const int log2 = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;
  switch (descr->type_num) {
    case NPY_BOOL:
      return DType::kBool;
    case NPY_BYTE:
    case NPY_SHORT:
    case NPY_INT:
    case NPY_LONG:
    case NPY_LONGLONG:
      return static_cast<DType>(static_cast<int>(DType::kInt8) + log2);
    case NPY_UBYTE:
    case NPY_USHORT:
    case NPY_UINT:
    case NPY_ULONG:
    case NPY_ULONGLONG:
      return static_cast<DType>(static_cast<int>(DType::kUint8) + log2);
    case NPY_HALF:
      return DType::kFloat16;
    case NPY_FLOAT:
      return DType::kFloat32;
    case NPY_DOUBLE:
      return DType::kFloat64;
    case NPY_CFLOAT:
      return DType::kComplex64;
    case NPY_CDOUBLE:
      return DType::kComplex128;
    default:
      // ml_dtypes registers a type of its own.
      if (descr->type_num >= NPY_USERDEF && bytes == 2 &&
          std::strstr(descr->typeobj->tp_name, "bfloat16") != nullptr) {
        return DType::kBfloat16;
      }
      return std::nullopt;
  }
}

std::string shown(PyObject* object) {
  Owned text(object == nullptr ? nullptr : PyObject_Str(object));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  std::string out = utf8 != nullptr ? utf8 : "?";
  clear_error();
  if (PyErr_Occurred() != nullptr) throw nanobind::python_error();
  return out;
}

std::string remedy_for(PyArray_Descr* descr) {
  switch (descr->type_num) {
    case NPY_OBJECT:
      return ": give its items as a list, or an array of a number's dtype";
    case NPY_UNICODE:
    case NPY_STRING:
      return ": give a str or bytes, or a list of them";
    case NPY_DATETIME:
    case NPY_TIMEDELTA:
      return ": use .astype('int64')";
    case NPY_LONGDOUBLE:
    case NPY_CLONGDOUBLE:
      return ": use .astype('float64') or 'complex128'";
    case NPY_VOID:
      return ": give its fields as a dict of arrays";
    default:
      return ": use .astype() of a number's dtype";
  }
}

// The text of the current Python exception; if it is not an Exception, it is thrown.
std::string raised() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nanobind::python_error();
  return shown(exception_in_flight().get());
}

PyObject* ragged_type() {
  PyObject* type = helper("penstock.base.ragged", "RaggedArray");
  if (type == nullptr) throw nanobind::python_error();
  return type;
}

bool is_masked(PyObject* value) {
  PyObject* ma = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy.ma");
  if (ma == nullptr) return false;
  PyObject* type = helper("numpy.ma", "MaskedArray");
  if (type == nullptr) throw nanobind::python_error();
  return PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(type));
}

}  // namespace

bool LeafValue::take(PyObject* value, std::string& why) {
  kind = LeafKind::kDense;
  array = nullptr;
  scalar = value;
  if (PyArray_CheckExact(value)) return take_array(reinterpret_cast<PyArrayObject*>(value), why);
  if (PyBytes_Check(value) || PyUnicode_Check(value)) {
    kind = PyBytes_Check(value) ? LeafKind::kBytes : LeafKind::kText;
    dtype = DType::kUint8;
    return true;
  }
  if (PyArray_IsScalar(value, Generic)) {
    Owned descr(reinterpret_cast<PyObject*>(PyArray_DescrFromScalar(value)));
    if (!descr) throw nanobind::python_error();
    auto* of = reinterpret_cast<PyArray_Descr*>(descr.get());
    auto known = dtype_of_descr(of);
    if (!known) why = "is a NumPy scalar of dtype " + shown(descr.get()) + remedy_for(of);
    if (known == DType::kBfloat16) {  // a user-defined type for NumPy, without a C layout
      made = Owned(PyArray_FromScalar(value, nullptr));
      if (!made) throw nanobind::python_error();
      return take_array(reinterpret_cast<PyArrayObject*>(made.get()), why);
    }
    if (known) dtype = *known;
    return known.has_value();
  }
  if (PyFloat_Check(value)) return dtype = DType::kFloat64, true;
  if (PyBool_Check(value)) return dtype = DType::kBool, true;
  if (PyLong_Check(value)) return dtype = DType::kInt64, true;
  if (PyComplex_Check(value)) return dtype = DType::kComplex128, true;
  if (PyArray_Check(value)) {
    if (is_masked(value)) {
      why = "is a masked array: use .filled()";
      return false;
    }
    PyObject* type = ragged_type();
    if (PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(type))) {
      axes = Owned(PyObject_GetAttrString(value, "axes"));
      if (!axes) throw nanobind::python_error();
      if (!PyTuple_CheckExact(axes.get())) {
        why = "is ragged along axes that are no tuple";
        return false;
      }
      if (PyTuple_GET_SIZE(axes.get()) > 0) kind = LeafKind::kRagged;
    }
    return take_array(reinterpret_cast<PyArrayObject*>(value), why);
  }
  return convert(value, why);
}

bool LeafValue::take_array(PyArrayObject* from, std::string& why) {
  PyArray_Descr* descr = PyArray_DESCR(from);
  auto known = dtype_of_descr(descr);
  if (!known) {
    why = "is an array of dtype " + shown(reinterpret_cast<PyObject*>(descr)) + remedy_for(descr);
    return false;
  }
  dtype = *known;
  array = from;
  scalar = nullptr;
  return true;
}

bool LeafValue::convert(PyObject* value, std::string& why) {
  Owned keep = Owned::borrow(value);  // user code may remove it from its container
  if (value == Py_None) {
    why = "is None: leave it out, or give a value that stands for it";
    return false;
  }
  PyObject* tensor = torch_tensor_type();
  if (tensor != nullptr && PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(tensor))) {
    PyObject* taken = helper("penstock.base.interop", "array_of_tensor");
    if (taken == nullptr) throw nanobind::python_error();
    Owned pair(PyObject_CallOneArg(taken, value));
    if (!pair) {
      why = "cannot be made an array: " + raised();
      return false;
    }
    if (pair.get() == Py_None) {
      why = "is not a plain CPU tensor: use .detach().cpu()";
      return false;
    }
    made = Owned::borrow(PyTuple_GET_ITEM(pair.get(), 0));
    if (!take_array(reinterpret_cast<PyArrayObject*>(made.get()), why)) return false;
    std::string name = shown(PyTuple_GET_ITEM(pair.get(), 1));
    if (auto known = dtype_from_name(name); known && size_of(*known) == size_of(dtype)) {
      dtype = *known;
      return true;
    }
    why = "is a tensor of dtype " + name + ": use .to() of a number's dtype";
    return false;
  }
  PyObject* ragged = helper("penstock.base.ragged", "Ragged");
  if (ragged == nullptr) throw nanobind::python_error();
  if (PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(ragged))) {
    kind = LeafKind::kColumn;
    dtype = DType::kUint8;
    scalar = value;
    return true;
  }
  const std::string type = Py_TYPE(value)->tp_name;
  PyObject* kind_of = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (PyType_Check(value) || !(PyObject_HasAttrString(kind_of, "__array__") ||
                               PyObject_HasAttrString(value, "__array_interface__"))) {
    why = "is of type " + type + kRemedy;
    return false;
  }
  made = Owned(PyArray_FromAny(value, nullptr, 0, 0, NPY_ARRAY_ENSUREARRAY, nullptr));
  if (!made) {
    why = "is of type " + type + ", which cannot be made an array: " + raised();
    return false;
  }
  return take_array(reinterpret_cast<PyArrayObject*>(made.get()), why);
}

bool LeafValue::write_number(std::byte* to) const {
  if (PyFloat_CheckExact(scalar)) {
    const double number = PyFloat_AS_DOUBLE(scalar);
    std::memcpy(to, &number, sizeof(number));
  } else if (PyArray_IsScalar(scalar, Generic)) {
    PyArray_ScalarAsCtype(scalar, to);
  } else if (dtype == DType::kInt64) {
    int overflow;
    const int64_t number = PyLong_AsLongLongAndOverflow(scalar, &overflow);
    if (overflow != 0) return false;
    std::memcpy(to, &number, sizeof(number));
  } else if (dtype == DType::kBool) {
    *to = std::byte(scalar == Py_True);
  } else if (dtype == DType::kFloat64) {
    const double number = PyFloat_AS_DOUBLE(scalar);
    std::memcpy(to, &number, sizeof(number));
  } else {
    const Py_complex number = PyComplex_AsCComplex(scalar);
    std::memcpy(to, &number, sizeof(number));
  }
  return true;
}

bool LeafValue::string(const char*& data, Py_ssize_t& bytes) const {
  if (kind == LeafKind::kBytes) {
    data = PyBytes_AS_STRING(scalar);
    bytes = PyBytes_GET_SIZE(scalar);
    return true;
  }
  data = PyUnicode_AsUTF8AndSize(scalar, &bytes);
  if (data == nullptr) PyErr_Clear();
  return data != nullptr;
}

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
