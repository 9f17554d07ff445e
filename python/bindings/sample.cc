#include "sample.h"

#include <cstdint>
#include <utility>

#include "sample_spec.h"

namespace penstock::python {

namespace {

constexpr int kMaxDepth = 64;

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
  bool named = PyTuple_Check(value) && !PyTuple_CheckExact(value) &&
               PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(value)), "_fields");
  if (depth < kMaxDepth && (PyTuple_CheckExact(value) || named || PyList_CheckExact(value))) {
    bool list = PyList_CheckExact(value);
    put(spec, list ? 'L' : named ? 'M' : 'T');
    if (named && !put_pickled(spec, "dump_class", reinterpret_cast<PyObject*>(Py_TYPE(value)))) {
      return false;
    }
    // Other threads may change a list or dict while Python runs: use its current items.
    Owned items(list ? PyList_GetSlice(value, 0, PyList_GET_SIZE(value)) : Py_NewRef(value));
    if (!items) return false;
    Py_ssize_t n = list ? PyList_GET_SIZE(items.get()) : PyTuple_GET_SIZE(items.get());
    put(spec, static_cast<uint32_t>(n));
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = list ? PyList_GET_ITEM(items.get(), i) : PyTuple_GET_ITEM(items.get(), i);
      if (!node(item, depth + 1)) return false;
    }
    return true;
  }
  if (depth < kMaxDepth && PyDict_CheckExact(value)) {
    Owned items(PyDict_Copy(value));
    if (!items) return false;
    put(spec, 'D');
    put(spec, static_cast<uint32_t>(PyDict_GET_SIZE(items.get())));
    Py_ssize_t at = 0;
    PyObject *key, *item;
    while (PyDict_Next(items.get(), &at, &key, &item)) {
      if (!put_pickled(spec, "dump_key", key)) return false;
      if (!node(item, depth + 1)) return false;
    }
    return true;
  }
  return object(value);
}

}  // namespace penstock::python
