#include "penstock/pipeline/api/dataset.h"

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
#include "module.h"
#include "penstock/base/cancellation.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/record_index.h"
#include "penstock/pipeline/transformations/operations.h"
#include "python_op.h"
#include "python_stages.h"
#include "sample_settings.h"
#include "user_object.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

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

std::shared_ptr<Op> mutable_op(OpRef op) { return std::const_pointer_cast<Op>(std::move(op)); }

std::shared_ptr<Op> make_parse_example(nb::list features, std::string field) {
  return mutable_op(parse_example(features_of(features), std::move(field)));
}

std::shared_ptr<Op> make_parse_sequence_example(nb::list context, nb::list lists,
                                                std::string field) {
  return mutable_op(
      parse_sequence_example(features_of(context), features_of(lists), std::move(field)));
}

// In another thread if possible, because reading files may take long: meanwhile the calling thread
// receives Ctrl-C, and stops the build.
std::shared_ptr<const Plan> build(const Dataset& dataset, bool skip,
                                  std::optional<Plan::Given> given = {}) {
  constexpr std::chrono::milliseconds kSignalCheck(100);
  Progress progress;
  std::future<std::shared_ptr<const Plan>> plan = std::async(
      std::launch::async | std::launch::deferred, [&, caller = std::this_thread::get_id()] {
        if (std::this_thread::get_id() != caller) os::block_all_signals();
        const Cancellation cancellation([&progress] {
          if (progress.stop) throw Error(Code::kClosed, "build", "stopped");
        });
        return std::make_shared<const Plan>(*dataset.node(), skip, &progress, std::move(given));
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

void bind_operations(nb::module_& m) {
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
  m.def("select",
        [](std::vector<std::string> fields) { return mutable_op(select(std::move(fields))); });
  m.def("decode_raw", [](std::string field, const std::string& dtype, Shape shape, bool reversed) {
    return mutable_op(decode_raw(std::move(field), dtype_named(dtype), std::move(shape), reversed));
  });
}

void bind_plan(nb::module_& m) {
  nb::class_<BuiltPlan>(m, "Plan", "A Dataset that was built. Internal.")
      .def_prop_ro("titles", [](const BuiltPlan& b) { return b.plan->titles(); })
      .def_prop_ro("length", [](const BuiltPlan& b) { return b.plan->known_length(); })
      .def_prop_ro("streamed", [](const BuiltPlan& b) { return b.plan->stream() != nullptr; })
      // Whether workers call Python, and whether the stream reader does.
      .def_prop_ro("python", [](const BuiltPlan& b) { return b.plan->python(); })
      .def_prop_ro("python_stream", [](const BuiltPlan& b) { return b.plan->stream_python(); })
      .def_prop_ro("rounds", [](const BuiltPlan& b) { return b.plan->rounds(); })
      .def_prop_ro("queue", [](const BuiltPlan& b) { return b.plan->queue(); })
      // For workers' Dataset.build_with(); the caller owns the descriptor of the files, but not
      // those of the caches.
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
      // The spec of the elements (or of the rows, if they are batched), made by leaf() for each
      // leaf; None: it is inferred from the first element. See spec_object.
      .def("spec",
           [](const BuiltPlan& b, nb::object leaf) {
             const SpecRef spec = b.plan->chain().spec();
             return spec == nullptr ? nb::none() : spec_object(spec, std::move(leaf));
           })
      .def_prop_ro("parts", [](const BuiltPlan& b) { return b.plan->parts(); })
      .def_prop_ro("batched", [](const BuiltPlan& b) { return b.plan->batched(); })
      .def_prop_ro("most_rows", [](const BuiltPlan& b) { return b.plan->max_rows(); });
  m.attr("ENDLESS") = kEndless;
}

// A stage that takes a function of an element: "NAME_op" with a native one, "NAME_python" with one
// of Python.
void bind_function(nb::class_<Dataset>& dataset, const std::string& name,
                   Dataset (Dataset::*stage)(OpRef) const) {
  dataset.def((name + "_op").c_str(), [stage](const Dataset& d, std::shared_ptr<Op> op) {
    return (d.*stage)(std::move(op));
  });
  dataset.def((name + "_python").c_str(),
              [stage](const Dataset& d, const UserObjectOwner& function, std::string title) {
                return (d.*stage)(std::make_shared<PythonOp>(function.shared(), std::move(title)));
              });
}

void bind_transformations(nb::class_<Dataset>& dataset) {
  bind_function(dataset, "map", &Dataset::map);
  bind_function(dataset, "filter", &Dataset::filter);
  bind_function(dataset, "take_while", &Dataset::take_while);
  bind_function(dataset, "unique", &Dataset::unique);
  dataset.def("take", &Dataset::take)
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
      .def("shuffle_buffer",
           [](const Dataset& d, uint64_t seed, uint64_t buffer, bool reshuffle) {
             return d.shuffle({.seed = seed, .reshuffle = reshuffle, .buffer = buffer});
           })
      .def("unique", [](const Dataset& d) { return d.unique(); })
      .def("scan_python",
           [](const Dataset& d, const UserObjectOwner& function, std::string title,
              nb::object initial) {
             return Dataset(nodes::scan(d.node(), std::move(title), held_row(initial.ptr()),
                                        std::make_shared<PythonScanner>(function.shared())));
           })
      .def("flat_map_python",
           [](const Dataset& d, const UserObjectOwner& function, std::string title) {
             return Dataset(
                 nodes::flat_map(d.node(), std::move(title),
                                 std::make_shared<PythonOpener>(function.shared(), "flat_map")));
           })
      .def("interleave_python",
           [](const Dataset& d, const UserObjectOwner& function, std::string title, uint64_t cycle,
              uint64_t block) {
             return Dataset(nodes::interleave(
                 d.node(), std::move(title),
                 std::make_shared<PythonOpener>(function.shared(), "interleave"), cycle, block));
           })
      .def("bucket_by_length",
           [](const Dataset& d, std::string field, std::vector<uint64_t> boundaries,
              std::vector<uint64_t> batch_sizes, bool drop) {
             return d.bucket_by_length(
                 {std::move(field), std::move(boundaries), std::move(batch_sizes), drop});
           })
      .def("unbatch", &Dataset::unbatch)
      .def("rebatch", [](const Dataset& d, uint64_t n,
                         bool drop) { return d.rebatch(n, {.drop_last = drop}); })
      .def("batch",
           [](const Dataset& d, uint64_t n, bool drop) { return d.batch(n, {.drop_last = drop}); })
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
             return d.padded_batch(n, std::move(each), {.drop_last = drop});
           })
      .def("ragged_batch", [](const Dataset& d, uint64_t n,
                              bool drop) { return d.ragged_batch(n, {.drop_last = drop}); })
      .def("cache", nb::overload_cast<uint64_t>(&Dataset::cache, nb::const_))
      .def("cache", [](const Dataset& d,
                       const std::filesystem::path& path) { return d.cache(path.native()); })
      .def("split_batch", &Dataset::split_batch)
      .def("window",
           [](const Dataset& d, uint64_t size, uint64_t shift, uint64_t stride, bool drop) {
             return d.window({size, shift, stride, drop});
           })
      .def(
          "shuffle_blocks",
          [](const Dataset& d, uint64_t seed, std::optional<uint64_t> block, uint64_t window,
             bool reshuffle) {
            return d.shuffle_blocks(
                {seed, block.value_or(ShuffleBlocksOptions::kStored), window, reshuffle});
          },
          nb::arg("seed"), nb::arg("block").none(), nb::arg("window"), nb::arg("reshuffle"))
      .def("on_error", [](const Dataset& d,
                          const std::string& policy) { return d.on_error(on_error_of(policy)); })
      .def("assert_cardinality", &Dataset::assert_cardinality)
      .def("repeat", &Dataset::repeat, nb::arg("count").none())
      .def("prefetch", &Dataset::prefetch, nb::arg("batches").none());
}

void bind_build(nb::class_<Dataset>& dataset) {
  dataset
      .def("title", [](const Dataset& d) { return d.node()->title; })
      // `skip`: for loaders that skip failed elements.
      .def("build",
           [](const Dataset& d, bool skip) {
             return BuiltPlan{build(d, skip), {}, {}};
           })
      // With the files and caches of another plan of this Dataset, in this process or another one:
      // its files_fd() and cache_fds(). Takes ownership of these descriptors. Without caches, the
      // plan has caches of its own.
      .def(
          "build_with",
          [](const Dataset& d, bool skip, int files,
             const std::optional<std::vector<int>>& caches) {
            Plan::Given given{os::Fd(files), std::nullopt};
            if (caches) {
              given.stores.emplace();
              for (int fd : *caches) given.stores->emplace_back(fd);
            }
            return BuiltPlan{build(d, skip, std::move(given)), {}, {}};
          },
          nb::arg("skip"), nb::arg("files"), nb::arg("caches").none());
}

}  // namespace

DType dtype_named(const std::string& name) {
  if (auto dtype = dtype_from_name(name)) return *dtype;
  throw Error(Code::kInvalidArgument, "dtype", name + " is none that a feed can have");
}

void bind_dataset(nb::module_& m) {
  bind_user_object(m);
  bind_operations(m);
  bind_plan(m);
  bind_columns(m);
  bind_arrow(m);
  nb::class_<Dataset> dataset(m, "Dataset", "Internal: use penstock.Dataset.");
  bind_sources(dataset);
  bind_transformations(dataset);
  bind_build(dataset);
}

}  // namespace penstock::python
