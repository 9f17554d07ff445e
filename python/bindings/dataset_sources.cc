#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dataset.h"
#include "elements.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
#include "penstock/pipeline/engine/samples.h"
#include "penstock/pipeline/sources/sources.h"
#include "python_stages.h"
#include "references.h"
#include "sample.h"

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

// The batches that a Loader with these options makes of rows.
Node::Ref batches_for(Node::Ref node, const nb::dict& options) {
  if (nb::cast<bool>(options["listed"])) {
    return listed_batches(node, nb::cast<uint64_t>(options["most_rows"]));
  }
  LoaderOptions of;
  of.batch_size = nb::cast<uint64_t>(options["batch_size"]);
  of.shuffle = nb::cast<bool>(options["shuffle"]);
  of.seed = nb::cast<uint64_t>(options["seed"]);
  of.drop_last = nb::cast<bool>(options["drop_last"]);
  of.shard = {nb::cast<uint32_t>(options["rank"]), nb::cast<uint32_t>(options["world"])};
  return batches_of(std::move(node), of);
}

// `sample`: an example of a row of each array, in the nest of a sample; `arrays`: its leaves in
// order. `options`: the Loader's options.
BuiltPlan plan_of_columns(nb::object sample, std::vector<nb::object> arrays, nb::dict options) {
  Sample taken;
  taken.fixed_width_text = true;
  if (!taken.take_apart(sample.ptr())) throw nb::python_error();
  if (taken.arrays.size() != arrays.size()) {
    throw Error(Code::kInternal, "Loader", "an array whose rows cannot be columns");
  }
  Example columns;
  for (size_t i = 0; i < arrays.size(); ++i) {
    columns.set(std::to_string(i), rows_of(reinterpret_cast<PyArrayObject*>(arrays[i].ptr())));
  }
  Node::Ref node = nodes::arrays(std::move(columns), {}, {}, describe(taken.spec));
  node = batches_for(std::move(node), options);
  return {std::make_shared<const Plan>(*node), std::move(taken.spec), {}};
}

// The plan of a Loader over the rows of a Dataset. `options`: the Loader's options.
BuiltPlan plan_of_rows(const Dataset& rows, nb::dict options) {
  return {std::make_shared<const Plan>(*batches_for(rows.node(), options)), {}, {}};
}

// The plan of a Loader over a Python data set, sampler or generator. `options`: the Loader's
// options.
BuiltPlan plan_of_samples(nb::dict options) {
  const bool stream = nb::cast<std::string>(options["source"]) == "stream";
  auto count = std::make_shared<std::atomic<uint64_t>>(nb::cast<uint64_t>(options["length"]));
  std::string title = nb::cast<bool>(options["samples"]) ? "samples" : "items";
  if (stream) title += " of " + std::to_string(nb::cast<uint32_t>(options["streams"])) + " streams";
  Node::Ref node = caller_samples(count, std::move(title));
  node = stream ? stream_batches(std::move(node), nb::cast<uint64_t>(options["batch_size"]))
                : batches_for(std::move(node), options);
  return {std::make_shared<const Plan>(*node), {}, std::move(count)};
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

template <class T>
std::vector<T> numbers_in(nb::handle bytes) {
  const auto given = nb::cast<nb::bytes>(bytes);
  std::vector<T> numbers(given.size() / sizeof(T));
  std::memcpy(numbers.data(), given.c_str(), numbers.size() * sizeof(T));
  return numbers;
}

// `sample`: an empty array of each data set's dtype, in the nest. `fields`: (name, reversed, shape,
// chunk, filters, offsets, bytes, skipped filters, fill value) of each, as base/hdf5.py makes them.
Dataset hdf5(const std::filesystem::path& path, std::pair<uint64_t, uint64_t> identity,
             nb::object sample, nb::list fields, uint64_t cache_bytes) {
  const SpecRef spec = spec_of(sample.ptr());
  if (spec->leaves().size() != nb::len(fields)) {
    throw Error(Code::kInternal, "hdf5", "another number of fields than of leaves");
  }
  std::vector<std::pair<std::string, ChunkedArray>> arrays;
  for (const Leaf& leaf : spec->leaves()) {
    nb::object field = fields[arrays.size()];
    ChunkedArray array;
    array.name = nb::cast<std::string>(field[0]);
    array.dtype = leaf.dtype;
    array.reversed = nb::cast<bool>(field[1]);
    array.shape = nb::cast<Shape>(field[2]);
    array.chunk = nb::cast<Shape>(field[3]);
    for (int filter : nb::cast<std::vector<int>>(field[4])) {
      array.filters.push_back(static_cast<ChunkedArray::Filter>(filter));
    }
    const auto offsets = numbers_in<uint64_t>(field[5]), bytes = numbers_in<uint64_t>(field[6]),
               skipped = numbers_in<uint64_t>(field[7]);
    if (bytes.size() != offsets.size() || skipped.size() != offsets.size()) {
      throw Error(Code::kInternal, "hdf5", "places of chunks without a size");
    }
    for (size_t i = 0; i < offsets.size(); ++i) {
      array.chunks.push_back({offsets[i], bytes[i], skipped[i]});
    }
    array.fill = numbers_in<std::byte>(field[8]);
    arrays.emplace_back(leaf.name, std::move(array));
  }
  Hdf5Options options;
  options.cache_bytes = cache_bytes;
  options.identity = {identity.first, identity.second};
  options.nest = spec->nest();
  return Dataset(nodes::hdf5(path, std::move(arrays), options));
}

// Of an .npz the name of the array; empty: an .npy.
Dataset file_rows(const std::filesystem::path& path, std::string name, const std::string& dtype,
                  Shape shape, uint64_t rows, bool reversed, uint64_t offset, nb::bytes header,
                  uint64_t file_bytes) {
  FileRowsOptions options;
  options.dtype = dtype_named(dtype);
  options.shape = std::move(shape);
  options.rows = rows;
  options.reversed = reversed;
  options.header = offset - header.size();
  options.offset = offset;
  options.header_crc = crc32c(std::as_bytes(std::span(header.c_str(), header.size())));
  options.file_bytes = file_bytes;
  const char* operation = name.empty() ? "npy" : "npz";
  options.name = std::move(name);
  return Dataset(nodes::file_rows(operation, path, std::move(options)));
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
                  [](const UserObjectOwner& source, uint64_t length, std::string title) {
                    return Dataset(python_source(source.shared(), length, std::move(title)));
                  })
      .def_static("generator_python",
                  [](const UserObjectOwner& function, std::string title) {
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
      .def_static("file_rows", &file_rows)
      .def_static("tar",
                  [](const FilePaths& paths, std::vector<std::string> fields,
                     std::string compression, bool stream, std::string index) {
                    return Dataset::tar(names_of(paths), {std::move(fields), std::move(compression),
                                                          stream, std::move(index)});
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
      .def_static("hdf5", &hdf5)
      .def_static(
          "files",
          [](const FilePaths& paths, std::optional<std::vector<int64_t>> labels,
             const std::string& index) {
            return Dataset::files(names_of(paths), std::move(labels), index);
          },
          nb::arg(), nb::arg().none(), nb::arg())
      .def_static(
          "image_folder",
          [](const std::filesystem::path& root, const FilePaths& classes,
             std::optional<double> validation_split, std::string subset, uint64_t seed,
             const std::filesystem::path& include, bool follow_links, std::string index) {
            return Dataset::image_folder(
                root, {names_of(classes), validation_split, std::move(subset), seed,
                       include.string(), follow_links, std::move(index)});
          },
          nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg())
      .def_static("concatenate", nb::overload_cast<std::vector<Dataset>>(&Dataset::concatenate));
}

void bind_columns(nb::module_& m) {
  m.def("plan_of_columns", &plan_of_columns);
  m.def("plan_of_rows", &plan_of_rows);
  m.def("plan_of_samples", &plan_of_samples);
}

}  // namespace penstock::python
