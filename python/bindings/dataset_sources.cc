#include "dataset_sources.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "arrow.h"
#include "dataset.h"
#include "elements.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/engine/samples.h"
#include "penstock/pipeline/sources/sources.h"
#include "python_sources.h"
#include "references.h"
#include "sample.h"
#include "sample_spec.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Names as in the file system, which need not be UTF-8.
using FilePaths = std::vector<std::filesystem::path>;

std::vector<std::string> names_of(const FilePaths& paths) { return {paths.begin(), paths.end()}; }

// `sample`: an example of a row of each array, in the nest; `arrays`: its leaves in order, all of
// one length.
Dataset arrays(nb::object sample, nb::list arrays) {
  SpecRef spec = spec_of(sample.ptr());
  if (spec->leaves().size() != nb::len(arrays)) {
    throw Error(Code::kInternal, "arrays", "leaves that are no arrays");
  }
  Example columns;
  std::vector<bool> reversed;
  for (size_t i = 0; i < spec->leaves().size(); ++i) {
    nb::object object = arrays[i];
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    const int axes = PyArray_NDIM(array);
    columns.set(spec->leaves()[i].name,
                Tensor::view(spec->leaves()[i].dtype,
                             Shape(PyArray_DIMS(array), PyArray_DIMS(array) + axes),
                             PyArray_DATA(array), share(object.ptr()),
                             Shape(PyArray_STRIDES(array), PyArray_STRIDES(array) + axes),
                             !PyArray_ISWRITEABLE(array)));
    reversed.push_back(PyArray_ISBYTESWAPPED(array));
  }
  return Dataset(nodes::arrays(std::move(columns), spec->nest(), std::move(reversed)));
}

// Each row as bytes, because only NumPy may know its dtype. REQUIRED: rows are contiguous.
Tensor rows_of(PyArrayObject* array) {
  const npy_intp rows = PyArray_DIM(array, 0);
  const int64_t bytes = rows == 0 ? 0 : PyArray_NBYTES(array) / rows;
  return Tensor::view(DType::kUint8, {rows, bytes}, PyArray_DATA(array),
                      share(reinterpret_cast<PyObject*>(array)), {PyArray_STRIDE(array, 0), 1},
                      !PyArray_ISWRITEABLE(array));
}

// `sample`: an example of a row of each array, in the nest of a sample; `arrays`: its leaves in
// order. `options`: the Loader's options.
BuiltPlan plan_of_columns(nb::object sample, std::vector<nb::object> arrays, nb::dict options) {
  Sample taken;
  taken.fixed_width_text = true;
  if (!taken.take_apart(sample.ptr())) throw nb::python_error();
  if (taken.arrays.size() != arrays.size()) {
    throw Error(Code::kInternal, "Loader", "an array whose rows are no columns");
  }
  Example columns;
  for (size_t i = 0; i < arrays.size(); ++i) {
    columns.set(std::to_string(i), rows_of(reinterpret_cast<PyArrayObject*>(arrays[i].ptr())));
  }
  Node::Ref node = nodes::arrays(std::move(columns), {}, {}, describe(taken.spec));
  if (nb::cast<bool>(options["listed"])) {
    node = listed_batches(node, nb::cast<uint64_t>(options["most_rows"]));
  } else {
    LoaderOptions of;
    of.batch_size = nb::cast<uint64_t>(options["batch_size"]);
    of.shuffle = nb::cast<bool>(options["shuffle"]);
    of.seed = nb::cast<uint64_t>(options["seed"]);
    of.drop_last = nb::cast<bool>(options["drop_last"]);
    of.shard = {nb::cast<uint32_t>(options["rank"]), nb::cast<uint32_t>(options["world"])};
    node = batches_of(std::move(node), of);
  }
  return {std::make_shared<const Plan>(*node), std::move(taken.spec)};
}

// Columns: (name, "text", "bytes" or a dtype, default in bytes or None) each.
Dataset csv(const FilePaths& paths, nb::list columns, std::vector<std::string> names,
            const std::string& delimiter, std::string compression, bool stream, std::string index) {
  CsvOptions options;
  for (nb::handle item : columns) {
    CsvColumn column{nb::cast<std::string>(item[0])};
    const auto type = nb::cast<std::string>(item[1]);
    if (type == "text" || type == "bytes") {
      column.kind = type == "text" ? CsvColumn::Kind::kText : CsvColumn::Kind::kBytes;
    } else {
      column.dtype = dtype_named(type);
    }
    if (!nb::object(item[2]).is_none()) {
      const auto fallback = nb::cast<nb::bytes>(item[2]);
      column.fallback.emplace(fallback.c_str(), fallback.size());
    }
    options.columns.push_back(std::move(column));
  }
  options.names = std::move(names);
  options.delimiter = delimiter.at(0);
  options.compression = std::move(compression);
  options.stream = stream;
  options.index = std::move(index);
  return Dataset::csv(names_of(paths), options);
}

}  // namespace

void bind_sources(nb::class_<Dataset>& dataset) {
  bind_arrow_source(dataset);
  dataset.def_static("range", nb::overload_cast<int64_t, int64_t, int64_t>(&Dataset::range))
      .def_static("arrays", &arrays)
      .def_static("items",
                  [](nb::bytes spec, uint64_t rows, nb::bytes block) {
                    if (rows == 0) return Dataset::items({});
                    const Block elements = block_in(spec, rows, block);
                    std::vector<Example> each;
                    each.reserve(rows);
                    for (uint64_t row = 0; row < rows; ++row) each.push_back(elements.row(row));
                    return Dataset(nodes::items(std::move(each), elements.spec()));
                  })
      .def_static("source_python",
                  [](const Held& source, uint64_t length, std::string title) {
                    return Dataset(python_source(source.shared(), length, std::move(title)));
                  })
      .def_static("generator_python",
                  [](const Held& function, std::string title) {
                    return Dataset(generator_source(function.shared(), std::move(title)));
                  })
      .def_static(
          "tfrecord",
          [](const FilePaths& paths, std::string compression, bool stream, std::string index) {
            TFRecordOptions options;
            options.compression = std::move(compression);
            options.stream = stream;
            options.index = std::move(index);
            return Dataset::tfrecord(names_of(paths), options);
          })
      .def_static("snapshot",
                  [](const std::filesystem::path& path) { return Dataset::snapshot(path); })
      .def_static("zip", &Dataset::zip)
      .def_static(
          "sample_from",
          [](std::vector<Dataset> inputs, std::vector<double> weights, uint64_t seed, bool stop) {
            SampleOptions options;
            options.weights = std::move(weights);
            options.seed = seed;
            options.stop_on_empty = stop;
            return Dataset::sample_from(std::move(inputs), options);
          })
      .def_static("choose_from",
                  [](std::vector<Dataset> inputs, bool stop) {
                    // The choices come first.
                    Dataset choices = inputs.front();
                    inputs.erase(inputs.begin());
                    return Dataset::choose_from(choices, std::move(inputs), stop);
                  })
      .def_static("interleave",
                  [](std::vector<Dataset> inputs, uint64_t cycle, uint64_t block) {
                    return Dataset::interleave(std::move(inputs), cycle, block);
                  })
      .def_static(
          "lines",
          [](const FilePaths& paths, std::string compression, bool stream, std::string index) {
            LineOptions options;
            options.compression = std::move(compression);
            options.stream = stream;
            options.index = std::move(index);
            return Dataset::lines(names_of(paths), options);
          })
      .def_static("csv", &csv)
      .def_static("fixed_records",
                  [](const FilePaths& paths, uint64_t bytes, uint64_t header, uint64_t footer,
                     std::string compression, bool stream) {
                    FixedRecordOptions options;
                    options.compression = std::move(compression);
                    options.stream = stream;
                    options.record_bytes = bytes;
                    options.header_bytes = header;
                    options.footer_bytes = footer;
                    return Dataset::fixed_records(names_of(paths), options);
                  })
      .def_static("idx",
                  [](const FilePaths& paths, const FilePaths& labels, std::string compression,
                     bool stream) {
                    return Dataset::idx(names_of(paths),
                                        {names_of(labels), std::move(compression), stream});
                  })
      .def_static("cifar10",
                  [](const FilePaths& paths, std::string compression, bool stream) {
                    return Dataset::cifar10(names_of(paths), {std::move(compression), stream});
                  })
      .def_static("cifar100",
                  [](const FilePaths& paths, std::string compression, bool stream) {
                    return Dataset::cifar100(names_of(paths), {std::move(compression), stream});
                  })
      .def_static("concatenate", nb::overload_cast<std::vector<Dataset>>(&Dataset::concatenate));
}

void bind_columns(nb::module_& m) { m.def("plan_of_columns", &plan_of_columns); }

}  // namespace penstock::python
