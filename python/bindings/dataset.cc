#include "penstock/pipeline/dataset.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "dataset.h"
#include "elements.h"
#include "gil.h"
#include "on_error.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/progress.h"
#include "penstock/pipeline/sources/arrays.h"
#include "penstock/pipeline/sources/items.h"
#include "penstock/pipeline/transformations/decode_raw.h"
#include "penstock/pipeline/transformations/parse_example.h"
#include "penstock/pipeline/transformations/parse_sequence_example.h"
#include "python_op.h"
#include "python_source.h"
#include "python_stages.h"
#include "python_stream.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// As the file system has them, which need not be UTF-8.
using FilePaths = std::vector<std::filesystem::path>;

std::vector<std::string> names_of(const FilePaths& paths) { return {paths.begin(), paths.end()}; }

// `sample` is what one row of each array looks like, all of one length; `arrays` are its leaves in
// order.
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
  return Dataset(
      std::make_shared<ArraysNode>(std::move(columns), spec->nest(), std::move(reversed)));
}

// (name, type, form, count, shape, dtype, default) each; see features.py.
std::vector<ExampleFeature> features_of(nb::list features) {
  std::vector<ExampleFeature> wanted;
  for (nb::handle item : features) {
    ExampleFeature feature;
    feature.name = nb::cast<std::string>(item[0]);
    feature.type = static_cast<ExampleFeature::Type>(nb::cast<int>(item[1]));
    feature.form = static_cast<ExampleFeature::Form>(nb::cast<int>(item[2]));
    feature.count = nb::cast<uint64_t>(item[3]);
    feature.shape = nb::cast<std::optional<std::vector<int64_t>>>(item[4]);
    if (nb::cast<bool>(item[5])) feature.dtype = DType::kInt32;
    if (!nb::object(item[6]).is_none()) {
      auto bytes = nb::cast<nb::bytes>(item[6][0]);
      ExampleFeature::Default value;
      const auto* from = reinterpret_cast<const std::byte*>(bytes.c_str());
      value.values.assign(from, from + bytes.size());
      value.lengths = nb::cast<std::vector<int64_t>>(item[6][1]);
      feature.default_value = std::move(value);
    }
    wanted.push_back(std::move(feature));
  }
  return wanted;
}

std::shared_ptr<Op> make_parse_example(nb::list features, std::string field) {
  return std::make_shared<ParseExampleOp>(features_of(features), std::move(field));
}

std::shared_ptr<Op> make_parse_sequence_example(nb::list context, nb::list lists,
                                                std::string field) {
  return std::make_shared<ParseSequenceExampleOp>(features_of(context), features_of(lists),
                                                  std::move(field));
}

DType dtype_named(const std::string& name);

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

DType dtype_named(const std::string& name) {
  if (auto dtype = dtype_from_name(name)) return *dtype;
  throw Error(Code::kInvalidArgument, "dtype", name + " is none that a feed can have");
}

std::shared_ptr<Op> mutable_op(OpRef op) { return std::const_pointer_cast<Op>(std::move(op)); }

// In another thread where there may be one, for it may go over files for long: only the calling one
// hears of Ctrl-C, and ends it.
std::shared_ptr<const Plan> build(const Dataset& dataset, std::optional<Plan::Told> told = {}) {
  constexpr std::chrono::milliseconds kSignalCheck(100);
  Progress progress;
  std::future<std::shared_ptr<const Plan>> plan = std::async(
      std::launch::async | std::launch::deferred, [&, caller = std::this_thread::get_id()] {
        if (std::this_thread::get_id() != caller) os::block_all_signals();
        return std::make_shared<const Plan>(*dataset.node(), &progress, std::move(told));
      });
  for (;;) {
    {
      WithoutGil unlocked;
      if (plan.wait_for(kSignalCheck) != std::future_status::timeout) return plan.get();
    }
    if (PyErr_CheckSignals() == 0) continue;
    progress.stop = true;
    WithoutGil unlocked;
    plan.wait();
    break;
  }
  throw nb::python_error();
}

}  // namespace

void bind_dataset(nb::module_& m) {
  nb::class_<Op>(m, "Op", "What map does, natively. Internal.").def("title", &Op::title);
  m.def("parse_example", &make_parse_example);
  m.def("parse_sequence_example", &make_parse_sequence_example);
  m.def("normalize",
        [](std::vector<float> mean, std::vector<float> std, std::vector<std::string> fields) {
          return mutable_op(normalize(std::move(mean), std::move(std), std::move(fields)));
        });
  m.def("cast", [](const std::string& dtype, std::vector<std::string> fields) {
    return mutable_op(cast(dtype_named(dtype), std::move(fields)));
  });
  m.def("decode_raw",
        [](std::string field, const std::string& dtype, Shape shape,
           bool reversed) -> std::shared_ptr<Op> {
          return std::make_shared<DecodeRawOp>(std::move(field), dtype_named(dtype),
                                               std::move(shape), reversed);
        });
  nb::class_<BuiltPlan>(m, "Plan", "A Dataset that was built. Internal.")
      .def_prop_ro("titles", [](const BuiltPlan& b) { return b.plan->titles(); })
      .def_prop_ro("length", [](const BuiltPlan& b) { return b.plan->known_length(); })
      .def_prop_ro("streamed", [](const BuiltPlan& b) { return b.plan->stream() != nullptr; })
      // Whether Python is called by the workers, and by the cursor.
      .def_prop_ro("python", [](const BuiltPlan& b) { return b.plan->python(); })
      .def_prop_ro("python_stream", [](const BuiltPlan& b) { return b.plan->stream_python(); })
      .def_prop_ro("rounds", [](const BuiltPlan& b) { return b.plan->rounds(); })
      .def_prop_ro("queue", [](const BuiltPlan& b) { return b.plan->queue(); })
      // For workers' Dataset.build_with(); the caller owns the descriptor of files, not those of
      // what caches share.
      .def(
          "files_fd", [](const BuiltPlan& b) { return b.plan->files_for_workers().release(); },
          nb::call_guard<WithoutGil>())
      .def("cache_fds",
           [](const BuiltPlan& b) {
             std::vector<int> fds;
             for (const auto& cache : b.plan->caches()) {
               for (int fd : cache->fds()) fds.push_back(fd);
             }
             return fds;
           })
      .def_prop_ro("batched", [](const BuiltPlan& b) { return b.plan->batched(); })
      .def_prop_ro("most_rows", [](const BuiltPlan& b) { return b.plan->most_rows(); });
  m.attr("ENDLESS") = kEndless;

  nb::class_<Dataset>(m, "Dataset", "Internal: use penstock.Dataset.")
      .def_static("range", nb::overload_cast<int64_t, int64_t, int64_t>(&Dataset::range))
      .def_static("arrays", &arrays)
      .def_static("items",
                  [](nb::bytes spec, uint64_t rows, nb::bytes block) {
                    if (rows == 0) return Dataset::items({});
                    const Block elements = block_in(spec, rows, block);
                    std::vector<Example> each;
                    each.reserve(rows);
                    for (uint64_t row = 0; row < rows; ++row) each.push_back(elements.row(row));
                    return Dataset(std::make_shared<ItemsNode>(std::move(each), elements.spec()));
                  })
      .def_static("source_python",
                  [](nb::object source, uint64_t length, std::string title) {
                    return Dataset(
                        std::make_shared<PythonSourceNode>(source.ptr(), length, std::move(title)));
                  })
      .def_static(
          "generator_python",
          [](nb::callable function, std::string title) {
            return Dataset(std::make_shared<PythonStreamNode>(function.ptr(), std::move(title)));
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
      .def_static("concatenate", nb::overload_cast<std::vector<Dataset>>(&Dataset::concatenate))
      .def("take", &Dataset::take)
      .def("skip", &Dataset::skip)
      .def("shard",
           [](const Dataset& d, uint32_t rank, uint32_t world, const std::string& remainder) {
             return d.shard(rank, world,
                            remainder == "drop"  ? Remainder::kDrop
                            : remainder == "pad" ? Remainder::kPad
                                                 : Remainder::kKeep);
           })
      .def("shuffle",
           [](const Dataset& d, uint64_t seed, bool reshuffle) {
             return d.shuffle({.seed = seed, .reshuffle = reshuffle});
           })
      .def("enumerate", &Dataset::enumerate)
      .def("map_op", [](const Dataset& d, std::shared_ptr<Op> op) { return d.map(std::move(op)); })
      .def("map_python",
           [](const Dataset& d, nb::callable function, std::string title) {
             return d.map(std::make_shared<PythonOp>(function.ptr(), std::move(title)));
           })
      .def("filter_op",
           [](const Dataset& d, std::shared_ptr<Op> op) { return d.filter(std::move(op)); })
      .def("filter_python",
           [](const Dataset& d, nb::callable function, std::string title) {
             return d.filter(std::make_shared<PythonOp>(function.ptr(), std::move(title)));
           })
      .def("take_while_op",
           [](const Dataset& d, std::shared_ptr<Op> op) { return d.take_while(std::move(op)); })
      .def("take_while_python",
           [](const Dataset& d, nb::callable function, std::string title) {
             return d.take_while(std::make_shared<PythonOp>(function.ptr(), std::move(title)));
           })
      .def("shuffle_buffer",
           [](const Dataset& d, uint64_t seed, uint64_t buffer, bool reshuffle) {
             return d.shuffle({.seed = seed, .reshuffle = reshuffle, .buffer = buffer});
           })
      .def("unique", [](const Dataset& d) { return d.unique(); })
      .def("unique_op",
           [](const Dataset& d, std::shared_ptr<Op> op) { return d.unique(std::move(op)); })
      .def("unique_python",
           [](const Dataset& d, nb::callable function, std::string title) {
             return d.unique(std::make_shared<PythonOp>(function.ptr(), std::move(title)));
           })
      .def("scan_python",
           [](const Dataset& d, nb::callable function, std::string title, nb::object initial) {
             return Dataset(
                 std::make_shared<ScanNode>(d.node(), std::move(title), held_row(initial.ptr()),
                                            std::make_shared<PythonScanner>(function.ptr())));
           })
      .def("flat_map_python",
           [](const Dataset& d, nb::callable function, std::string title) {
             return Dataset(std::make_shared<FlatMapNode>(
                 d.node(), std::move(title),
                 std::make_shared<PythonOpener>(function.ptr(), "flat_map")));
           })
      .def("interleave_python",
           [](const Dataset& d, nb::callable function, std::string title, uint64_t cycle,
              uint64_t block) {
             return Dataset(std::make_shared<InterleaveStreamNode>(
                 d.node(), std::move(title),
                 std::make_shared<PythonOpener>(function.ptr(), "interleave"), cycle, block));
           })
      .def("bucket_by_length",
           [](const Dataset& d, std::string field, std::vector<uint64_t> boundaries,
              std::vector<uint64_t> batch_sizes, bool drop) {
             return d.bucket_by_length(
                 {std::move(field), std::move(boundaries), std::move(batch_sizes), drop});
           })
      .def("unbatch", &Dataset::unbatch)
      .def("rebatch", [](const Dataset& d, uint64_t n,
                         bool drop) { return d.rebatch(n, {.drop_remainder = drop}); })
      .def("batch", [](const Dataset& d, uint64_t n,
                       bool drop) { return d.batch(n, {.drop_remainder = drop}); })
      .def("padded_batch",
           [](const Dataset& d, uint64_t n, nb::list fields, bool drop) {
             std::vector<Padding::Field> each;
             for (nb::handle item : fields) {
               Padding::Field field;
               field.name = nb::cast<std::string>(item[0]);
               field.shape = nb::cast<std::optional<Shape>>(item[1]);
               if (nb::isinstance<nb::float_>(item[2])) {
                 field.value = nb::cast<double>(item[2]);
               } else {
                 field.value = nb::cast<int64_t>(item[2]);
               }
               each.push_back(std::move(field));
             }
             return d.padded_batch(n, std::move(each), {.drop_remainder = drop});
           })
      .def("ragged_batch", [](const Dataset& d, uint64_t n,
                              bool drop) { return d.ragged_batch(n, {.drop_remainder = drop}); })
      .def("cache", nb::overload_cast<uint64_t>(&Dataset::cache, nb::const_))
      .def("cache", [](const Dataset& d,
                       const std::filesystem::path& path) { return d.cache(path.native()); })
      .def("split_batch", &Dataset::split_batch)
      .def("window",
           [](const Dataset& d, uint64_t size, uint64_t shift, uint64_t stride, bool drop) {
             return d.window({size, shift, stride, drop});
           })
      .def("shuffle_blocks",
           [](const Dataset& d, uint64_t seed, uint64_t block, uint64_t window, bool reshuffle) {
             return d.shuffle_blocks(ShuffleBlocksOptions{seed, block, window, reshuffle});
           })
      .def("on_error", [](const Dataset& d,
                          const std::string& policy) { return d.on_error(on_error_of(policy)); })
      .def("assert_cardinality", &Dataset::assert_cardinality)
      .def("repeat", &Dataset::repeat, nb::arg("count").none())
      .def("prefetch", &Dataset::prefetch, nb::arg("batches").none())
      .def("title", [](const Dataset& d) { return d.node()->title(); })
      .def("build", [](const Dataset& d) { return BuiltPlan{build(d)}; })
      // In a worker process, which owns the descriptors: the plan whose files_fd() and cache_fds()
      // those are of.
      .def("build_with", [](const Dataset& d, int files, const std::vector<int>& caches) {
        Plan::Told told{os::Fd(files), {}};
        for (int fd : caches) told.stores.emplace_back(fd);
        return BuiltPlan{build(d, std::move(told))};
      });
}

}  // namespace penstock::python
