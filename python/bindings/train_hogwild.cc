#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <vector>

#include "gil.h"
#include "gradient_parts.h"
#include "module.h"
#include "penstock/base/os.h"
#include "penstock/train/hogwild.h"
#include "penstock/train/thread_group.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::Hogwild;
using train::HogwildReport;
using train::HogwildWorker;
using train::NonFinite;
using train::Optimizer;
using train::Parameters;
using train::SharedCounters;
using train::Slab;
using train::Snapshots;
using train::Updater;

bool apply_parts(HogwildWorker& worker, nb::list parts, double scale) {
  const PartsOfList given(parts);
  WithoutGil unlocked;
  return worker.apply(given.parts(), scale);
}

nb::dict counts_of(const SharedCounters& counters, size_t worker) {
  const SharedCounters::Counts counts = counters.counts(worker);
  nb::dict made;
  made["steps"] = counts.steps;
  made["begun"] = counts.begun;
  made["applied"] = counts.applied;
  made["skipped"] = counts.skipped;
  return made;
}

void finish_step(const SharedCounters& counters, size_t worker, std::optional<double> loss,
                 uint64_t copied) {
  if (loss) counters.note_loss(worker, *loss);
  if (copied > 0) counters.note_copied(worker, copied);
  counters.note_step(worker);
}

void bind_counters(nb::module_& m) {
  nb::class_<SharedCounters>(m, "SharedCounters", "Internal: use penstock.train.Hogwild.")
      .def_static("make", &SharedCounters::make, nb::arg("workers"), nb::arg("shared"))
      .def_static("open", &SharedCounters::open, nb::arg("fd"))
      .def_prop_ro("fd", &SharedCounters::fd)
      .def("claim_step", &SharedCounters::claim_step)
      .def("return_step", &SharedCounters::return_step)
      .def("stop", &SharedCounters::stop)
      .def_prop_ro("stopped", &SharedCounters::stopped)
      .def_prop_ro("updates", &SharedCounters::updates)
      .def("counts", &counts_of, nb::arg("worker"))
      .def(
          "note_update",
          [](const SharedCounters& counters, size_t worker, uint64_t staleness) {
            counters.add_updates(1);
            counters.note_begun(worker, 1);
            counters.note_applied(worker, 1, staleness);
          },
          nb::arg("worker"), nb::arg("staleness"))
      .def("note_non_finite", &SharedCounters::note_non_finite, nb::arg("worker"),
           nb::arg("skipped"))
      .def("finish_step", &finish_step, nb::arg("worker"), nb::arg("loss").none(),
           nb::arg("copied"));
}

nb::dict as_dict(const HogwildReport& report) {
  nb::dict made;
  made["steps"] = report.steps;
  made["updates"] = report.updates;
  made["seconds"] = report.seconds;
  nb::dict staleness;
  for (const auto& [least, count] : report.staleness) staleness[nb::int_(least)] = count;
  made["staleness"] = staleness;
  made["loss"] = report.loss;
  made["recent_loss"] = report.recent_loss;
  made["skipped"] = report.skipped;
  made["non_finite"] = report.non_finite;
  made["copied_bytes"] = report.copied;
  nb::list workers;
  for (const auto& [steps, updates] : report.workers) {
    nb::dict worker;
    worker["steps"] = steps;
    worker["updates"] = updates;
    workers.append(worker);
  }
  made["workers"] = workers;
  return made;
}

nb::dict run(Hogwild& hogwild, nb::object work, nb::object started, uint64_t steps,
             int64_t duration_ns, nb::object until, int64_t ask_every_ns) {
  Hogwild::Until end{.steps = steps, .duration_ns = duration_ns, .ask_every_ns = ask_every_ns};
  if (!until.is_none()) {
    end.enough = [&](const HogwildReport& report) {
      const WithGil locked;
      return nb::cast<bool>(until(as_dict(report)));
    };
  }
  const auto work_of = [&](size_t number) {
    const WithGil locked;
    work(number);
  };
  const auto when_started = [&] {
    const WithGil locked;
    started();
  };
  HogwildReport report;
  {
    const WithoutGil unlocked;
    report = hogwild.run_workers(work_of, end, python_threads("penstock hogwild"), when_started);
  }
  return as_dict(report);
}

void bind_run(nb::module_& m) {
  nb::class_<Hogwild>(m, "Hogwild", "Internal: use penstock.train.Hogwild.")
      .def(
          "__init__",
          [](Hogwild* made, Updater& updater, size_t workers, bool own_state, int non_finite,
             int snapshots, size_t replicas, uint64_t merge_every) {
            new (made) Hogwild(updater, workers,
                               {.own_state = own_state,
                                .non_finite = static_cast<NonFinite>(non_finite),
                                .snapshots = static_cast<Snapshots>(snapshots),
                                .replicas = replicas,
                                .merge_every = merge_every});
          },
          nb::arg("updater"), nb::arg("workers"), nb::arg("own_state"), nb::arg("non_finite"),
          nb::arg("snapshots"), nb::arg("replicas"), nb::arg("merge_every"), nb::keep_alive<1, 2>())
      .def(nb::init<Updater&, SharedCounters>(), nb::arg("updater"), nb::arg("counters"),
           nb::keep_alive<1, 2>())
      .def(nb::init<SharedCounters>(), nb::arg("counters"))
      .def_prop_ro("counters", [](const Hogwild& hogwild) { return hogwild.counters(); })
      .def(
          "worker",
          [](Hogwild& hogwild, size_t number) -> HogwildWorker& {
            return hogwild.workers().at(number);
          },
          nb::arg("number"), nb::rv_policy::reference_internal)
      .def("group_of", &Hogwild::group_of, nb::arg("worker"))
      .def("run", &run, nb::arg("work"), nb::arg("started"), nb::arg("steps"),
           nb::arg("duration_ns"), nb::arg("until").none(), nb::arg("ask_every_ns"));
  using Unlocked = nb::call_guard<WithoutGil>;
  m.def("core_groups", &os::core_groups, nb::arg("groups"), Unlocked());
  m.def("pin_to_cores", &os::pin_to_cores, nb::arg("cores"), Unlocked());
}

}  // namespace

void bind_train_hogwild(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  bind_counters(m);
  bind_run(m);
  nb::class_<HogwildWorker>(m, "HogwildWorker", "Internal: use penstock.train.Hogwild.")
      .def(
          "__init__",
          [](HogwildWorker* made, const Slab& parameters, const Optimizer& optimizer,
             std::vector<Slab> state, const SharedCounters& counters, size_t number,
             bool shares_state, int non_finite, int snapshots) {
            new (made)
                HogwildWorker(Parameters(parameters), optimizer, std::move(state), counters, number,
                              {.shares_state = shares_state,
                               .non_finite = static_cast<NonFinite>(non_finite),
                               .snapshots = static_cast<Snapshots>(snapshots)});
          },
          nb::arg("parameters"), nb::arg("optimizer"), nb::arg("state"), nb::arg("counters"),
          nb::arg("number"), nb::arg("shares_state"), nb::arg("non_finite"), nb::arg("snapshots"))
      .def_prop_rw("updates", &HogwildWorker::updates, &HogwildWorker::set_updates)
      .def_prop_ro("parameters",
                   [](const HogwildWorker& worker) { return worker.parameters().slab(); })
      .def_prop_ro("weights", [](const HogwildWorker& worker) { return worker.weights().slab(); })
      .def("begin", &HogwildWorker::begin, Unlocked())
      .def("read",
           [](HogwildWorker& worker) {
             if (worker.up_to_date()) return worker.read();
             WithoutGil unlocked;
             worker.read();
           })
      .def(
          "apply",
          [](HogwildWorker& worker, const Slab& gradients) { return worker.apply(gradients); },
          nb::arg("gradients"), Unlocked())
      .def("apply_parts", &apply_parts, nb::arg("parts"), nb::arg("scale"))
      .def(
          "finish_step",
          [](HogwildWorker& worker, std::optional<double> loss, uint64_t copied) {
            finish_step(worker.counters(), worker.number(), loss, copied);
          },
          nb::arg("loss").none(), nb::arg("copied"));
}

}  // namespace penstock::python
