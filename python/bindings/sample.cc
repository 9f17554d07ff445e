#include "sample.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "penstock/memory/copy.h"
#include "penstock/memory/tensor.h"
#include "values.h"

namespace penstock::python {

namespace {

// Replaces NumPy's type number if a pickled dtype follows.
inline constexpr uint8_t kPickledDtype = 255;

template <class T>
void put(std::vector<std::byte>& out, T value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), from, from + sizeof(T));
}

void put_bytes(std::vector<std::byte>& out, const void* bytes, size_t n) {
  put(out, static_cast<uint32_t>(n));
  const auto* from = static_cast<const std::byte*>(bytes);
  out.insert(out.end(), from, from + n);
}

// NumPy has two type numbers for 64-bit integers, which are one type elsewhere.
int canonical(int type) {
  static_assert(sizeof(long) == sizeof(long long));
  return type == NPY_LONGLONG ? NPY_LONG : type == NPY_ULONGLONG ? NPY_ULONG : type;
}

bool put_pickled(std::vector<std::byte>& out, const char* how, PyObject* value) {
  PyObject* dump = helper("penstock.base.interop", how);
  Owned bytes(dump == nullptr ? nullptr : PyObject_CallOneArg(dump, value));
  if (!bytes) return false;
  put_bytes(out, PyBytes_AS_STRING(bytes.get()), PyBytes_GET_SIZE(bytes.get()));
  return true;
}

}  // namespace

bool Sample::take_apart(PyObject* sample) {
  spec.clear();
  release();
  return node(sample, 0);
}

void Sample::release() {
  arrays.clear();
  objects.clear();
  keep.clear();
}

bool Sample::object(PyObject* object) {
  put(spec, 'o');
  keep.push_back(Owned::borrow(object));
  objects.push_back(object);
  return true;
}

bool Sample::array(PyArrayObject* array) {
  keep.push_back(Owned::borrow(reinterpret_cast<PyObject*>(array)));
  PyArray_Descr* descr = PyArray_DESCR(array);
  bool text = descr->type_num == NPY_UNICODE || descr->type_num == NPY_STRING;
  if (PyDataType_FLAGCHK(descr, NPY_ITEM_REFCOUNT) || descr->type_num == 2056 ||
      (text && PyArray_NDIM(array) == 0 && !fixed_width_text)) {
    return object(reinterpret_cast<PyObject*>(array));
  }
  put(spec, 'a');
  if (descr->type_num >= 0 && descr->type_num < NPY_OBJECT && PyArray_ISNBO(descr->byteorder)) {
    put(spec, static_cast<uint8_t>(canonical(descr->type_num)));
  } else {
    put(spec, kPickledDtype);
    if (!put_pickled(spec, "dump_class", reinterpret_cast<PyObject*>(descr))) return false;
  }
  put(spec, static_cast<uint8_t>(PyArray_NDIM(array)));
  for (int d = 0; d < PyArray_NDIM(array); ++d) {
    put(spec, static_cast<int64_t>(PyArray_DIM(array, d)));
  }
  arrays.push_back(array);
  return true;
}

bool Sample::node(PyObject* value, int depth) {
  if (PyArray_CheckExact(value)) return array(reinterpret_cast<PyArrayObject*>(value));
  bool number = PyBool_Check(value) || PyFloat_CheckExact(value) ||
                (PyArray_IsScalar(value, Generic) && !PyArray_IsScalar(value, Void) &&
                 !PyArray_IsScalar(value, Flexible));
  if (PyLong_CheckExact(value)) {
    int overflow;
    PyLong_AsLongLongAndOverflow(value, &overflow);
    number = overflow == 0;
  }
  if (number) {
    // Python's numbers become int64, float64 and bool, as in NumPy.
    Owned zero_d(PyArray_FromAny(value, nullptr, 0, 0, 0, nullptr));
    if (!zero_d) return false;
    return array(reinterpret_cast<PyArrayObject*>(zero_d.get()));
  }
  PyObject* tensor = torch_tensor_type();
  if (tensor != nullptr &&
      PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(tensor))) {
    PyObject* convert = helper("penstock.base.interop", "array_of_tensor");
    Owned pair(convert == nullptr ? nullptr : PyObject_CallOneArg(convert, value));
    if (!pair) return false;
    if (pair.get() != Py_None) {
      Py_ssize_t n;
      const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair.get(), 1), &n);
      if (name == nullptr) return false;
      put(spec, 'x');
      put_bytes(spec, name, n);
      return array(reinterpret_cast<PyArrayObject*>(PyTuple_GET_ITEM(pair.get(), 0)));
    }
  }
  if (depth >= kMaxDepth) return object(value);
  if (PyTuple_CheckExact(value)) {
    put(spec, 'T');
  } else if (is_namedtuple(value)) {
    put(spec, 'M');
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    if (!put_pickled(spec, "dump_class", type)) return false;
  } else if (PyList_CheckExact(value)) {
    put(spec, 'L');
  } else if (PyDict_CheckExact(value)) {
    put(spec, 'D');
  } else {
    return object(value);
  }
  const Parts parts(value, false);
  if (!parts) return false;
  put(spec, static_cast<uint32_t>(parts.size()));
  return parts.each([&](PyObject* key, PyObject* part, bool) {
    return (key == nullptr || put_pickled(spec, "dump_key", key)) && node(part, depth + 1);
  });
}

namespace {

// Reads the structure of a sample, written by Sample. The bytes come from a worker of this Loader,
// but are validated like untrusted ones.
class StructureReader {
 public:
  explicit StructureReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  template <class T>
  T get() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> get_bytes() {
    uint32_t n = get<uint32_t>();
    if (n > bytes_.size()) {
      ok_ = false;
      return {};
    }
    auto taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }
  Owned load_class() {
    auto pickle = get_bytes();
    PyObject* load = ok_ ? helper("penstock.base.interop", "load_class") : nullptr;
    Owned bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(pickle.data()),
                                          static_cast<Py_ssize_t>(pickle.size())));
    return Owned(load == nullptr || !bytes ? nullptr : PyObject_CallOneArg(load, bytes.get()));
  }
  Owned dtype() {
    uint8_t type = get<uint8_t>();
    if (type == kPickledDtype) return load_class();
    return Owned(ok_ ? reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)) : nullptr);
  }
  Shape shape() {
    Shape shape;
    for (int n = get<uint8_t>(); n > 0 && ok_; --n) shape.push_back(get<int64_t>());
    return shape;
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

void describe(StructureReader& in, std::string& out) {
  char kind = in.get<char>();
  auto several = [&](const char* open, const char* close) {
    out += open;
    uint32_t n = in.get<uint32_t>();
    for (uint32_t i = 0; i < n && in.ok(); ++i) {
      if (i != 0) out += ", ";
      describe(in, out);
    }
    out += close;
  };
  switch (kind) {
    case 'x':
      in.get_bytes();
      describe(in, out);
      break;
    case 'a': {
      Owned dtype = in.dtype();
      Owned name(dtype ? PyObject_Str(dtype.get()) : nullptr);
      const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
      out += text != nullptr ? text : "?";
      Shape shape = in.shape();
      out += " of shape (";
      for (size_t d = 0; d < shape.size(); ++d) {
        if (d != 0) out += ", ";
        out += std::to_string(shape[d]);
      }
      out += shape.size() == 1 ? ",)" : ")";
      break;
    }
    case 'M':
      in.get_bytes();
      [[fallthrough]];
    case 'T':
      several("(", ")");
      break;
    case 'L':
      several("[", "]");
      break;
    case 'D': {
      out += '{';
      uint32_t n = in.get<uint32_t>();
      for (uint32_t i = 0; i < n && in.ok(); ++i) {
        if (i != 0) out += ", ";
        Owned key = in.load_class();
        Owned name(key ? PyObject_Repr(key.get()) : nullptr);
        const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
        out += text != nullptr ? text : "?";
        out += ": ";
        describe(in, out);
      }
      out += '}';
      break;
    }
    case 'o':
      out += "object";
      break;
    default:
      out += '?';
  }
}

void collect(StructureReader& in, std::vector<Field>& fields) {
  char kind = in.get<char>();
  uint32_t n = 0;
  switch (kind) {
    case 'x':
      in.get_bytes();
      collect(in, fields);
      return;
    case 'a': {
      Owned dtype = in.dtype();
      Shape shape = in.shape();
      if (dtype && PyArray_DescrCheck(dtype.get())) {
        auto item = PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(dtype.get()));
        fields.push_back(Field::opaque(static_cast<uint32_t>(item), std::move(shape)));
      }
      return;
    }
    case 'M':
      in.get_bytes();
      [[fallthrough]];
    case 'T':
    case 'L':
      for (n = in.get<uint32_t>(); n > 0 && in.ok(); --n) collect(in, fields);
      return;
    case 'D':
      for (n = in.get<uint32_t>(); n > 0 && in.ok(); --n) {
        in.get_bytes();
        collect(in, fields);
      }
      return;
    default:
      return;
  }
}

}  // namespace

RowLayout layout_of(std::span<const std::byte> spec, uint64_t rows) {
  StructureReader in(spec);
  std::vector<Field> fields;
  collect(in, fields);
  return RowLayout(std::move(fields), rows);
}

bool write_row(const Sample& sample, const RowLayout& layout, std::byte* base, uint64_t row,
               WorkerCounters& counters) {
  for (size_t f = 0; f < sample.arrays.size(); ++f) {
    PyArrayObject* array = sample.arrays[f];
    std::byte* to = layout.row(base, f, row);
    uint64_t bytes = layout.fields()[f].row_bytes;
    if (static_cast<uint64_t>(PyArray_NBYTES(array)) != bytes) {
      PyErr_SetString(PyExc_RuntimeError, "an array was resized by another thread meanwhile");
      return false;
    }
    if (PyArray_IS_C_CONTIGUOUS(array)) {
      copy_stream(to, PyArray_DATA(array), bytes);
    } else {
      Py_INCREF(PyArray_DESCR(array));
      Owned over(PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(array), PyArray_NDIM(array),
                                      PyArray_DIMS(array), nullptr, to, NPY_ARRAY_CARRAY, nullptr));
      if (!over || PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(over.get()), array) != 0) {
        return false;
      }
    }
    count_copy(counters, CopyReason::kRow, bytes);
  }
  return true;
}

namespace {

struct BatchBuilder {
  std::span<std::byte* const> columns;
  uint64_t rows;
  PyObject* owner;
  PyObject* objects;
  size_t field = 0;
  Py_ssize_t object = 0;

  PyObject* broken() {
    if (PyErr_Occurred() == nullptr) {
      PyErr_SetString(PyExc_RuntimeError, "penstock: a batch's layout does not add up");
    }
    return nullptr;
  }

  PyObject* column(StructureReader& in) {
    Owned dtype = in.dtype();
    Shape shape = in.shape();
    if (!dtype || !in.ok() || field >= columns.size()) return broken();
    npy_intp dims[NPY_MAXDIMS];
    if (shape.size() + 1 > NPY_MAXDIMS) return broken();
    dims[0] = static_cast<npy_intp>(rows);
    for (size_t d = 0; d < shape.size(); ++d) dims[d + 1] = shape[d];
    std::byte* data = columns[field++];
    Owned made(PyArray_NewFromDescr(
        &PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype.release()),
        static_cast<int>(shape.size()) + 1, dims, nullptr, data, NPY_ARRAY_CARRAY, nullptr));
    if (made && PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made.get()),
                                      Py_NewRef(owner)) != 0) {
      return nullptr;
    }
    return made.release();
  }

  PyObject* node(StructureReader& in) {
    char kind = in.get<char>();
    switch (kind) {
      case 'a':
        return column(in);
      case 'x': {
        auto name = in.get_bytes();
        in.get<char>();
        Owned made(column(in));
        PyObject* convert = helper("penstock.base.interop", "tensor_of_array");
        if (!made || convert == nullptr) return nullptr;
        return PyObject_CallFunction(convert, "Os#", made.get(),
                                     reinterpret_cast<const char*>(name.data()),
                                     static_cast<Py_ssize_t>(name.size()));
      }
      case 'o':
        if (objects == nullptr || object >= PyList_GET_SIZE(objects)) return broken();
        return Py_NewRef(PyList_GET_ITEM(objects, object++));
      case 'T':
      case 'L':
      case 'M': {
        Owned cls = kind == 'M' ? in.load_class() : Owned();
        if (kind == 'M' && !cls) return broken();
        uint32_t n = in.get<uint32_t>();
        if (!in.ok()) return broken();
        Owned made(kind == 'L' ? PyList_New(n) : PyTuple_New(n));
        for (uint32_t i = 0; made && i < n; ++i) {
          PyObject* item = node(in);
          if (item == nullptr) return nullptr;
          if (kind == 'L') {
            PyList_SET_ITEM(made.get(), i, item);
          } else {
            PyTuple_SET_ITEM(made.get(), i, item);
          }
        }
        return cls ? PyObject_CallMethod(cls.get(), "_make", "(O)", made.get()) : made.release();
      }
      case 'D': {
        Owned made(PyDict_New());
        for (uint32_t n = in.get<uint32_t>(); made && n > 0 && in.ok(); --n) {
          Owned key = in.load_class();
          Owned item(key ? node(in) : nullptr);
          if (!item || PyDict_SetItem(made.get(), key.get(), item.get()) != 0) return broken();
        }
        return made.release();
      }
      default:
        return broken();
    }
  }
};

}  // namespace

PyObject* batch_of(std::span<const std::byte> spec, std::span<std::byte* const> columns,
                   uint64_t rows, PyObject* owner, PyObject* objects) {
  StructureReader in(spec);
  BatchBuilder builder{columns, rows, owner, objects};
  return builder.node(in);
}

std::string describe(std::span<const std::byte> spec) {
  StructureReader in(spec);
  std::string out;
  describe(in, out);
  return out;
}

}  // namespace penstock::python
