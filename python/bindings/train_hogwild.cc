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
#include "penstock/base/os.h"
#include "penstock/train/hogwild_worker.h"
#include "penstock/train/replica.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::HogwildBoard;
using train::HogwildWorker;
using train::NonFinite;
using train::Optimizer;
using train::Parameters;
using train::Replica;
using train::Slab;
using train::Snapshots;

bool apply_parts(HogwildWorker& worker, nb::list parts, double scale) {
  const PartsOfList given(parts);
  WithoutGil unlocked;
  return worker.apply(given.parts(), scale);
}

nb::dict counts_of(const HogwildBoard& board, size_t worker) {
  const HogwildBoard::Counts counts = board.counts(worker);
  nb::dict made;
  made["steps"] = counts.steps;
  made["begun"] = counts.begun;
  made["applied"] = counts.applied;
  made["non_finite"] = counts.non_finite;
  made["skipped"] = counts.skipped;
  made["copied"] = counts.copied;
  made["losses"] = counts.losses;
  made["loss_sum"] = counts.loss_sum;
  made["recent_loss"] = counts.recent_loss;
  nb::dict staleness;
  for (size_t i = 0; i < counts.staleness.size(); ++i) {
    if (counts.staleness[i] > 0)
      staleness[nb::int_(HogwildBoard::least_of(i))] = counts.staleness[i];
  }
  made["staleness"] = staleness;
  return made;
}

void bind_board(nb::module_& m) {
  nb::class_<HogwildBoard>(m, "HogwildBoard", "Internal: use penstock.train.Hogwild.")
      .def_static("make", &HogwildBoard::make, nb::arg("workers"), nb::arg("shared"))
      .def_static("open", &HogwildBoard::open, nb::arg("fd"))
      .def_prop_ro("fd", &HogwildBoard::fd)
      .def("begin", &HogwildBoard::begin, nb::arg("steps"), nb::arg("updates"))
      .def("take", &HogwildBoard::take)
      .def("untake", &HogwildBoard::untake)
      .def("stop", &HogwildBoard::stop)
      .def_prop_ro("stopped", &HogwildBoard::stopped)
      .def_prop_ro("updates", &HogwildBoard::updates)
      .def("counts", &counts_of, nb::arg("worker"));
}

void bind_replica(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<Replica>(m, "Replica", "Internal: use penstock.train.Hogwild.")
      .def_static(
          "make",
          [](const Slab& common, size_t groups, uint64_t updates) {
            return Replica::make(Parameters(common), groups, updates);
          },
          nb::arg("common"), nb::arg("groups"), nb::arg("updates"))
      .def_prop_ro("slab", [](const Replica& replica) { return replica.parameters().slab(); })
      .def("begin", &Replica::begin, Unlocked())
      .def("merge", &Replica::merge, Unlocked());
  m.def("near_cores", &os::near_cores, nb::arg("groups"), Unlocked());
  m.def("stay_on", &os::stay_on, nb::arg("cores"), Unlocked());
}

}  // namespace

void bind_train_hogwild(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  bind_board(m);
  bind_replica(m);
  nb::class_<HogwildWorker>(m, "HogwildWorker", "Internal: use penstock.train.Hogwild.")
      .def(
          "__init__",
          [](HogwildWorker* made, const Slab& parameters, const Optimizer& optimizer,
             std::vector<Slab> state, const HogwildBoard& board, size_t number, bool shares_state,
             int non_finite, int snapshots, std::shared_ptr<Replica> replica,
             uint64_t merge_every) {
            new (made)
                HogwildWorker(Parameters(parameters), optimizer, std::move(state), board, number,
                              {.shares_state = shares_state,
                               .non_finite = static_cast<NonFinite>(non_finite),
                               .snapshots = static_cast<Snapshots>(snapshots),
                               .replica = std::move(replica),
                               .merge_every = merge_every});
          },
          nb::arg("parameters"), nb::arg("optimizer"), nb::arg("state"), nb::arg("board"),
          nb::arg("number"), nb::arg("shares_state"), nb::arg("non_finite"), nb::arg("snapshots"),
          nb::arg("replica").none() = nb::none(), nb::arg("merge_every") = 0)
      .def_prop_rw("updates", &HogwildWorker::updates, &HogwildWorker::set_updates)
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
            if (loss) worker.note_loss(*loss);
            const HogwildBoard& board = worker.board();
            if (copied > 0) board.note_copied(worker.number(), copied);
            board.note_step(worker.number());
          },
          nb::arg("loss").none(), nb::arg("copied"));
}

}  // namespace penstock::python
