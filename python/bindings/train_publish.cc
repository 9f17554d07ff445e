#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <vector>

#include "gil.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/train/model.h"
#include "penstock/train/publisher.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::Block;
using train::Layout;
using train::Model;
using train::ModelOptions;
using train::Parameters;
using train::Publisher;
using train::Reading;
using train::Slab;

// The context manager over one version. On exit the dict is emptied, so that a variable that still
// refers to it does not keep the version. Arrays taken out of it do.
class HeldWeights {
 public:
  HeldWeights(uint64_t version, nb::dict weights)
      : version_(version), weights_(std::move(weights)) {}
  nb::tuple enter() const { return nb::make_tuple(version_, weights_); }
  void exit() const { weights_.clear(); }

 private:
  const uint64_t version_;
  mutable nb::dict weights_;
};

// A Model with the shapes of its arrays, so that read() looks nothing up.
class ReadModel {
 public:
  ReadModel(const std::string& name, std::optional<Layout> like, int64_t timeout_ns)
      : model_(name, {.like = std::move(like),
                      .timeout_ns = timeout_ns,
                      .while_waiting = look_for_signals}) {}

  Model& model() { return model_; }

  HeldWeights read(uint64_t max_lag) {
    if (model_.would_wait()) {
      WithoutGil unlocked;
      model_.version();
    }
    // Keeps the GIL: it may take long to get it back.
    return held(model_.read(max_lag));
  }

 private:
  struct View {
    nb::str name;
    std::vector<npy_intp> lengths;
    size_t offset;
  };

  HeldWeights held(const Reading& reading) {
    if (views_.empty()) {
      for (const Block& block : model_.layout().blocks()) {
        views_.push_back({nb::str(block.name.data(), block.name.size()),
                          {block.shape.begin(), block.shape.end()},
                          block.offset});
      }
    }
    Owned owner(owner_capsule(std::make_shared<Reading>(reading)));
    if (!owner) throw nb::python_error();
    nb::dict weights;
    // Readers' pages are read-only: a write past NumPy's flag is a fault, and does not change what
    // others read.
    auto* first = const_cast<float*>(reading.values().data());
    for (const View& view : views_) {
      nb::object array = nb::steal(PyArray_New(
          &PyArray_Type, static_cast<int>(view.lengths.size()), view.lengths.data(), NPY_FLOAT32,
          nullptr, first + view.offset, 0, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED, nullptr));
      if (!array.is_valid() || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()),
                                                     Owned::borrow(owner.get()).release()) != 0) {
        throw nb::python_error();
      }
      weights[view.name] = array;
    }
    return {reading.version(), std::move(weights)};
  }

  Model model_;
  std::vector<View> views_;  // made with the GIL, in the first read
};

// The blocks of a slab, or of a list of names with shapes.
Layout layout_like(nb::handle like) {
  if (nb::isinstance<Slab>(like)) return nb::cast<const Slab&>(like).layout();
  return layout_of(nb::cast<nb::list>(like));
}

// Publishes what `function` writes into a dict of arrays, by the blocks' names. They are views of
// the version's memory, and the dict is emptied afterwards.
uint64_t write_version(Publisher& publisher, nb::object function, uint64_t version) {
  WithoutGil unlocked;
  const auto write = [&](std::span<float> to) {
    const WithGil locked;
    nb::dict arrays;
    for (const Block& block : publisher.layout().blocks()) {
      std::vector<npy_intp> lengths(block.shape.begin(), block.shape.end());
      nb::object array = nb::steal(PyArray_SimpleNewFromData(
          static_cast<int>(lengths.size()), lengths.data(), NPY_FLOAT32, to.data() + block.offset));
      if (!array.is_valid()) throw nb::python_error();
      arrays[nb::str(block.name.data(), block.name.size())] = array;
    }
    function(arrays);
    arrays.clear();
  };
  return publisher.publish(write, version);
}

}  // namespace

void bind_train_publish(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<Publisher>(m, "Publisher", "Internal: use penstock.train.publish.")
      .def(
          "__init__",
          [](Publisher* self, const std::string& name, nb::object like) {
            Layout layout = layout_like(like);
            WithoutGil unlocked;
            new (self) Publisher(name, std::move(layout));
          },
          nb::arg("name"), nb::arg("like"))
      .def(
          "publish",
          [](Publisher& publisher, const Slab& slab) {
            return publisher.publish(Parameters(slab));
          },
          nb::arg("parameters"), Unlocked())
      .def("write", &write_version, nb::arg("function"), nb::arg("version"))
      .def_prop_ro("readers", &Publisher::readers)
      .def_prop_ro("holders", [](const Publisher& publisher) {
        const auto pids = publisher.holders();
        return std::vector<int64_t>(pids.begin(), pids.end());
      });

  nb::class_<HeldWeights>(m, "HeldWeights", "Internal: the result of Model.read().")
      .def("__enter__", &HeldWeights::enter)
      .def(
          "__exit__", [](const HeldWeights& held, nb::args) { held.exit(); },
          nb::sig("def __exit__(self, *args: object) -> None"));

  nb::class_<ReadModel>(m, "ReadModel", "Internal: use penstock.train.attach.")
      .def_static(
          "attach",
          [](const std::string& name, nb::object like, int64_t timeout_ns) {
            std::optional<Layout> layout;
            if (!like.is_none()) layout = layout_like(like);
            WithoutGil unlocked;
            return std::make_unique<ReadModel>(name, std::move(layout), timeout_ns);
          },
          nb::arg("name"), nb::arg("like").none(), nb::arg("timeout_ns"))
      .def("read", &ReadModel::read, nb::arg("max_lag"))
      .def(
          "wait",
          [](ReadModel& self, uint64_t version, int64_t timeout_ns) {
            return self.model().wait(version, timeout_ns);
          },
          nb::arg("version"), nb::arg("timeout_ns"), Unlocked())
      .def(
          "close", [](ReadModel& self) { self.model().close(); }, Unlocked())
      .def_prop_ro("version",
                   [](ReadModel& self) {
                     WithoutGil unlocked;
                     return self.model().version();
                   })
      .def_prop_ro("alive", [](ReadModel& self) { return self.model().alive(); });
}

}  // namespace penstock::python
