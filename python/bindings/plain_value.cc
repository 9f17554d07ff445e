#include "plain_value.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

constexpr npy_intp kNamedFile = 64 << 10;  // _arrays.py's _LARGE

// Whether the elements are contiguous, in any order of the axes.
bool is_dense(PyArrayObject* array) {
  if (PyArray_IS_C_CONTIGUOUS(array)) return true;
  std::vector<std::pair<npy_intp, npy_intp>> axes;  // stride, length
  for (int d = 0; d < PyArray_NDIM(array); ++d) {
    if (PyArray_DIM(array, d) > 1)
      axes.emplace_back(PyArray_STRIDE(array, d), PyArray_DIM(array, d));
  }
  std::sort(axes.begin(), axes.end());
  npy_intp next = PyArray_ITEMSIZE(array);
  for (auto [stride, length] : axes) {
    if (stride != next) return false;
    next *= length;
  }
  return true;
}

}  // namespace

bool PlainValue::array(PyArrayObject* array) {
  if (PyDataType_METADATA(PyArray_DESCR(array)) != nullptr) return false;
  if (PyArray_NBYTES(array) < kNamedFile) return true;
  PyObject* base = PyArray_BASE(array);
  while (base != nullptr && PyArray_Check(base)) {
    if (!PyArray_CheckExact(base)) return false;  // a memmap is not plain
    base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(base));
  }
  return true;
}

bool PlainValue::tensor(PyObject* tensor, PyArrayObject* over) {
  Owned attributes(PyObject_GetAttrString(tensor, "__dict__"));
  if (!attributes) PyErr_Clear();
  if (!attributes || PyObject_Size(attributes.get()) != 0 || !is_dense(over)) return false;
  const auto begin = reinterpret_cast<uintptr_t>(PyArray_DATA(over));
  const uintptr_t end = begin + PyArray_NBYTES(over);
  if (begin == end) return true;
  const auto next = tensors_.upper_bound(begin);
  if (next != tensors_.end() && next->first < end) return false;
  if (next != tensors_.begin() && std::prev(next)->second > begin) return false;
  tensors_.emplace(begin, end);
  return true;
}

}  // namespace penstock::python
