#include <nanobind/nanobind.h>

#include "gil.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/base/bijection.h"
#include "penstock/pipeline/scheduler/order.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

class Permutation {
 public:
  Permutation(uint64_t length, uint64_t seed, uint64_t epoch)
      : length_(length),
        seed_(seed),
        epoch_(epoch),
        order_({.length = length,
                .batch_size = std::max<uint64_t>(length, 1),
                .shuffle = true,
                .seed = seed}) {}
  uint64_t length() const { return length_; }
  nb::str repr() const {
    return nb::str("Permutation({}, seed={}, epoch={})").format(length_, seed_, epoch_);
  }

  uint64_t at(int64_t i) const {
    if (i < 0) i += static_cast<int64_t>(length_);
    if (i < 0 || static_cast<uint64_t>(i) >= length_) {
      throw nb::index_error("position out of range");
    }
    uint64_t index;
    order_.indices(epoch_, 0, 0, static_cast<uint64_t>(i), {&index, 1});
    return index;
  }

  nb::object take(uint64_t start, uint64_t count) const {
    if (start > length_) start = length_;
    count = std::min(count, length_ - start);
    auto n = static_cast<npy_intp>(count);
    nb::object made = nb::steal(PyArray_SimpleNew(1, &n, NPY_UINT64));
    if (!made.is_valid()) throw nb::python_error();
    auto* data = static_cast<uint64_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.ptr())));
    WithoutGil unlocked;
    order_.indices(epoch_, 0, 0, start, {data, count});
    return made;
  }

 private:
  uint64_t length_, seed_, epoch_;
  Order order_;
};

}  // namespace

void bind_permutation(nb::module_& m) {
  nb::class_<Permutation>(m, "Permutation", R"(The shuffled order of an epoch, computed, not stored.

The permutation of ``range(length)`` that a Loader with shuffle=True uses in that epoch: a keyed
bijection, O(1) memory, any position at once. Any thread.)")
      .def(nb::init<uint64_t, uint64_t, uint64_t>(), nb::arg("length"), nb::arg("seed") = 0,
           nb::arg("epoch") = 0)
      .def("__len__", &Permutation::length)
      .def("__repr__", &Permutation::repr)
      .def("__getitem__", &Permutation::at)
      .def("take", &Permutation::take, nb::arg("start"), nb::arg("count"),
           "Positions start, start + 1, ... of the order, as an array of uint64.");
}

}  // namespace penstock::python
