#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "gil.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/train/slab.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::Block;
using train::BlockSpec;
using train::Layout;
using train::Slab;

// The block's memory as a NumPy array, which keeps the slab.
nb::object array_of(const Tensor& tensor) {
  nb::object made = nb::steal(PyArray_SimpleNewFromData(
      static_cast<int>(tensor.ndim()), reinterpret_cast<const npy_intp*>(tensor.shape().data()),
      NPY_FLOAT32, tensor.data()));
  if (!made.is_valid()) throw nb::python_error();
  PyObject* owner = owner_capsule(tensor.owner());
  if (owner == nullptr ||
      PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made.ptr()), owner) != 0) {
    throw nb::python_error();
  }
  return made;
}

// All blocks by name, in order.
nb::dict arrays_of(const Slab& slab) {
  nb::dict arrays;
  for (const Block& block : slab.layout().blocks()) {
    arrays[nb::str(block.name.data(), block.name.size())] = array_of(slab.at(block.name));
  }
  return arrays;
}

}  // namespace

Layout layout_of(nb::list blocks) {
  std::vector<BlockSpec> specs;
  for (nb::handle block : blocks) {
    BlockSpec spec{nb::cast<std::string>(block[0]), {}};
    for (nb::handle length : block[1]) spec.shape.push_back(nb::cast<int64_t>(length));
    specs.push_back(std::move(spec));
  }
  return Layout(specs);
}

void bind_train_slab(nb::module_& m) {
  nb::class_<Slab>(m, "Slab", "Internal: use penstock.train.Parameters.")
      .def_static(
          "make",
          [](nb::list blocks, bool shared) {
            Layout layout = layout_of(blocks);
            WithoutGil unlocked;
            return Slab::make(std::move(layout),
                              shared ? Slab::Kind::kShared : Slab::Kind::kPrivate);
          },
          nb::arg("blocks"), nb::arg("shared"))
      .def_static(
          "open",
          [](int fd, nb::list blocks) {
            Layout layout = layout_of(blocks);
            WithoutGil unlocked;
            return Slab::open(fd, std::move(layout));
          },
          nb::arg("fd"), nb::arg("blocks"))
      .def("like",
           [](const Slab& slab, bool shared) {
             WithoutGil unlocked;
             return Slab::make(slab.layout(), shared ? Slab::Kind::kShared : Slab::Kind::kPrivate);
           })
      .def(
          "window",
          [](const Slab& slab, nb::list blocks, size_t offset) {
            return slab.window(layout_of(blocks), offset);
          },
          nb::arg("blocks"), nb::arg("offset"))
      .def("arrays", &arrays_of)
      .def("zero", &Slab::zero, nb::call_guard<WithoutGil>())
      .def("copy_from", &Slab::copy_from, nb::arg("other"), nb::call_guard<WithoutGil>())
      .def_prop_ro("shared", [](const Slab& slab) { return slab.kind() == Slab::Kind::kShared; })
      .def_prop_ro("fd", &Slab::fd)
      .def_prop_ro("all_floats", [](const Slab& slab) { return slab.layout().floats(); })
      .def_prop_ro("floats", [](const Slab& slab) { return slab.layout().parameters(); })
      .def_prop_ro("bytes", [](const Slab& slab) { return slab.layout().bytes(); })
      .def_prop_rw(
          "version", [](const Slab& slab) { return slab.version().load(); },
          [](const Slab& slab, uint64_t version) { slab.version().store(version); });
}

}  // namespace penstock::python
