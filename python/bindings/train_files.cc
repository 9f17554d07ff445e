#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>

#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/train/weight_files.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::Parameters;
using train::Slab;
using train::Updater;

DType dtype_named(const std::string& name) {
  if (const auto dtype = dtype_from_name(name)) return *dtype;
  throw Error(Code::kInvalidArgument, "save", "there is no dtype " + name);
}

}  // namespace

void bind_train_files(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  m.def(
      "save_parameters",
      [](const Slab& slab, const std::filesystem::path& path, const std::string& dtype) {
        train::save(Parameters(slab), path, dtype_named(dtype));
      },
      nb::arg("slab"), nb::arg("path"), nb::arg("dtype"), Unlocked());
  m.def(
      "load_parameters",
      [](const Slab& slab, const std::filesystem::path& path) {
        train::load(Parameters(slab), path);
      },
      nb::arg("slab"), nb::arg("path"), Unlocked());
  m.def(
      "parameters_of_file",
      [](const std::filesystem::path& path, bool shared) {
        const auto kind = shared ? Slab::Kind::kShared : Slab::Kind::kPrivate;
        return train::load_parameters(path, kind).slab();
      },
      nb::arg("path"), nb::arg("shared"), Unlocked());
  m.def(
      "save_updater",
      [](const Updater& updater, const std::filesystem::path& path) { train::save(updater, path); },
      nb::arg("updater"), nb::arg("path"), Unlocked());
  m.def(
      "load_updater",
      [](Updater& updater, const std::filesystem::path& path) { train::load(updater, path); },
      nb::arg("updater"), nb::arg("path"), Unlocked());
}

}  // namespace penstock::python
