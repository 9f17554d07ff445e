#include "rows.h"

#include <utility>

#include "penstock/memory/copy.h"
#include "sample_spec.h"

namespace penstock::python {

namespace {

void collect(SpecReader& in, std::vector<Field>& fields) {
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
  SpecReader in(spec);
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

  PyObject* column(SpecReader& in) {
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

  PyObject* node(SpecReader& in) {
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
  SpecReader in(spec);
  BatchBuilder builder{columns, rows, owner, objects};
  return builder.node(in);
}

}  // namespace penstock::python
