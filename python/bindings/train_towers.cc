#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gil.h"
#include "gradient_parts.h"
#include "module.h"
#include "penstock/train/towers.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::Slab;
using train::Tower;
using train::Towers;
using train::TowersReport;
using train::Updater;

// Rounds of Python batches. `take` returns a list with (batch, weight) for each tower, or None for
// a tower without a batch; `compute(tower, step, batch)` returns an Outcome (steps.py). `apply` of
// towers without an updater takes a list with each tower's weight, and returns whether there was an
// update.
class PythonRounds : public Towers::Work {
 public:
  PythonRounds(nb::object begin, nb::object take, nb::object compute, nb::object apply)
      : begin_(std::move(begin)),
        take_(std::move(take)),
        compute_(std::move(compute)),
        apply_(std::move(apply)) {}

  void make(Tower&) override {
    const WithGil locked;
    begin_();
  }

  std::optional<Weights> take() override {
    const WithGil locked;
    const nb::object taken = take_();
    if (taken.is_none()) return std::nullopt;
    next_ = nb::list(taken);
    Weights weights;
    for (nb::handle each : next_) {
      weights.push_back(each.is_none() ? std::nullopt : std::optional(nb::cast<double>(each[1])));
    }
    return weights;
  }

  void advance() override {
    const WithGil locked;
    now_ = std::exchange(next_, nb::list());
  }

  std::optional<double> compute(Tower& tower) override {
    const WithGil locked;
    const size_t number = tower.number();
    nb::object given = now_[number];
    now_[number] = nb::none();  // the step is the last to hold its batch
    const nb::object outcome = compute_(number, tower.step(), nb::object(given[0]));
    tower.note_copied(nb::cast<uint64_t>(outcome[2]));
    if (nb::object parts = outcome[1]; !parts.is_none()) {
      const PartsOfList rows{nb::list(parts)};
      tower.use_rows();
      const WithoutGil unlocked;
      for (const train::GradientPart& part : rows.parts()) {
        tower.add_rows(part.block, part.rows, part.values);
      }
    }
    return nb::cast<std::optional<double>>(outcome[0]);
  }

  bool apply(std::span<const double> weights) override {
    const WithGil locked;
    nb::list given;
    for (const double weight : weights) given.append(weight);
    return nb::cast<bool>(apply_(given));
  }

 private:
  const nb::object begin_, take_, compute_, apply_;
  nb::list next_, now_;
};

nb::dict as_dict(const TowersReport& report) {
  nb::dict made;
  made["updates"] = report.updates;
  made["rounds"] = report.rounds;
  made["batches"] = report.batches;
  made["seconds"] = report.seconds;
  made["loss"] = report.loss;
  made["last_loss"] = report.last_loss;
  made["copied_bytes"] = report.copied_bytes;
  return made;
}

nb::dict run_towers(Towers& towers, nb::object begin, nb::object take, nb::object compute,
                    nb::object apply, uint64_t steps, int64_t duration_ns, nb::object until) {
  PythonRounds rounds(std::move(begin), std::move(take), std::move(compute), std::move(apply));
  Towers::Until end{.steps = steps, .duration_ns = duration_ns};
  if (!until.is_none()) {
    end.enough = [&until](const TowersReport& report) {
      const WithGil locked;
      return nb::cast<bool>(until(as_dict(report)));
    };
  }
  TowersReport report;
  {
    const WithoutGil unlocked;
    report = towers.run(rounds, end, python_threads("penstock tower"));
  }
  return as_dict(report);
}

}  // namespace

void bind_train_towers(nb::module_& m) {
  nb::class_<Towers>(m, "Towers", "Internal: use penstock.train.Towers.")
      .def(nb::init<Updater&, std::vector<Slab>>(), nb::arg("updater"), nb::arg("gradients"),
           nb::keep_alive<1, 2>())
      .def(nb::init<size_t>(), nb::arg("towers"))
      .def("run", &run_towers, nb::arg("begin"), nb::arg("take"), nb::arg("compute"),
           nb::arg("apply").none(), nb::arg("steps"), nb::arg("duration_ns"),
           nb::arg("until").none())
      .def_prop_ro("failed", [](const Towers& towers) {
        const auto& failed = towers.failed();
        return failed ? std::optional(std::pair(failed->tower, failed->round)) : std::nullopt;
      });
}

}  // namespace penstock::python
