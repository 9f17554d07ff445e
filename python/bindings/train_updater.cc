#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "buffer.h"
#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/train/updater.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::NonFinite;
using train::Optimizer;
using train::Parameters;
using train::Schedule;
using train::Slab;
using train::Updater;

using Common = Optimizer::Common;
// The pickled form of Schedule::Numbers.
using NumbersState =
    std::tuple<uint64_t, double, double, uint64_t, uint64_t, std::vector<uint64_t>>;

template <typename T>
std::span<const T> values_of(const Buffer& buffer) {
  return {reinterpret_cast<const T*>(buffer.bytes().data()), buffer.bytes().size() / sizeof(T)};
}

void bind_schedule(nb::module_& m) {
  nb::class_<Schedule>(m, "Schedule", R"(The learning rate as a function of the step.

Step n is the update after n updates, from 0. ``Schedule(lr)`` is constant; optimizers also take a
number as ``lr``. Errors: `penstock.InvalidArgument` for numbers that are negative or not finite,
and for 0 steps. An immutable value. Threads: any.)")
      .def(nb::init<double>(), nb::arg("lr"))
      .def_static("steps", &Schedule::steps, nb::arg("lr"), nb::arg("at"), nb::arg("factor") = 0.1,
                  "``lr``, multiplied by ``factor`` at each of the steps ``at``, which ascend.\n\n"
                  "torch's MultiStepLR.")
      .def_static("exponential", &Schedule::exponential, nb::arg("lr"), nb::arg("factor"),
                  nb::arg("every") = 1,
                  "``lr * factor ** (step / every)``, with a real exponent.\n\n"
                  "With every=1 torch's ExponentialLR.")
      .def_static("cosine", &Schedule::cosine, nb::arg("lr"), nb::arg("steps"),
                  nb::arg("end") = 0.0,
                  "Half a cosine from ``lr`` to ``end`` at step ``steps``, constant afterwards.\n\n"
                  "Loshchilov and Hutter 2017, without restarts.")
      .def("after_warmup", &Schedule::after_warmup, nb::arg("steps"),
           "This schedule after a linear warm-up of ``steps`` steps.\n\n"
           "Step s has ``(s + 1) / (steps + 1)`` of this schedule's first rate.")
      .def("at", &Schedule::at, nb::arg("step"),
           "The learning rate of the update after ``step`` updates.")
      .def("__repr__",
           [](const Schedule& schedule) {
             static constexpr const char* kNames[] = {"", ".steps", ".exponential", ".cosine"};
             const Schedule::Numbers n = schedule.numbers();
             nb::object text = nb::str("Schedule{}({})").attr("format")(kNames[n.kind], n.lr);
             if (n.warmup > 0) text = nb::str("{}.after_warmup({})").attr("format")(text, n.warmup);
             return nb::str(text);
           })
      .def("__getstate__",
           [](const Schedule& schedule) {
             const Schedule::Numbers n = schedule.numbers();
             return std::make_tuple(n.kind, n.lr, n.factor, n.length, n.warmup, n.at);
           })
      .def("__setstate__", [](Schedule& made, const NumbersState& state) {
        const auto& [kind, lr, factor, length, warmup, at] = state;
        new (&made) Schedule(Schedule::from_numbers({kind, lr, factor, length, warmup, at}));
      });
}

const char* name_of(train::kernels::Formula formula) {
  using train::kernels::Formula;
  switch (formula) {
    case Formula::kSgd:
      return "sgd";
    case Formula::kMomentum:
      return "momentum";
    case Formula::kNesterov:
      return "nesterov";
    case Formula::kAdagrad:
      return "adagrad";
    case Formula::kRmsProp:
      return "rmsprop";
    case Formula::kCenteredRmsProp:
      return "centered_rmsprop";
    case Formula::kAdam:
      return "adam";
  }
  return "";
}

void bind_optimizer(nb::module_& m) {
  nb::class_<Common>(m, "OptimizerCommon", "Internal.")
      .def(
          "__init__",
          [](Common* made, double weight_decay, double clip_value, double clip_norm) {
            new (made) Common{weight_decay, clip_value, clip_norm};
          },
          nb::arg("weight_decay"), nb::arg("clip_value"), nb::arg("clip_norm"));
  nb::class_<Optimizer>(m, "Optimizer", "Internal: use penstock.train.Adam and its like.")
      .def_static("sgd",
                  [](Schedule lr, Common common) { return Optimizer::sgd(std::move(lr), common); })
      .def_static("momentum", &Optimizer::momentum)
      .def_static("nesterov", &Optimizer::nesterov)
      .def_static("adagrad", &Optimizer::adagrad)
      .def_static("rmsprop",
                  [](Schedule lr, double alpha, double eps, bool centered, Common common) {
                    return Optimizer::rmsprop(std::move(lr), {alpha, eps, centered}, common);
                  })
      .def_static("adam",
                  [](Schedule lr, double beta1, double beta2, double eps, Common common) {
                    return Optimizer::adam(std::move(lr), {beta1, beta2, eps}, common);
                  })
      .def_static("adamw",
                  [](Schedule lr, double beta1, double beta2, double eps, Common common) {
                    return Optimizer::adamw(std::move(lr), {beta1, beta2, eps}, common);
                  })
      .def(
          "pass_of",
          [](const Optimizer& optimizer, uint64_t step) {
            // Of norm 0, so that nothing is clipped by norm: that is the caller's.
            const train::kernels::Pass p = optimizer.pass(step, 1.0, 0.0);
            return nb::make_tuple(
                name_of(p.formula),
                nb::make_tuple(optimizer.clip_norm(), p.clip, p.decay, p.keep, p.rate, p.memory,
                               p.fresh, p.memory2, p.fresh2, p.root, p.eps));
          },
          nb::arg("step"),
          "The formula's name, and the numbers of the update after ``step`` updates: clip_norm, "
          "clip, decay, keep, rate, memory, fresh, memory2, fresh2, root, eps. See formulas.h.")
      .def_prop_ro("state_slabs", &Optimizer::state_slabs)
      .def_prop_ro("initial_state", &Optimizer::initial_state);
}

}  // namespace

void bind_train_updater(nb::module_& m) {
  bind_schedule(m);
  bind_optimizer(m);
  nb::class_<Updater>(m, "Updater", "Internal: use penstock.train.Updater.")
      .def(
          "__init__",
          [](Updater* made, const Slab& parameters, const Optimizer& optimizer, int non_finite,
             bool shared) {
            WithoutGil unlocked;
            new (made) Updater(Parameters(parameters), optimizer,
                               {.non_finite = static_cast<NonFinite>(non_finite),
                                .state = shared ? Slab::Kind::kShared : Slab::Kind::kPrivate});
          },
          nb::arg("parameters"), nb::arg("optimizer"), nb::arg("non_finite"), nb::arg("shared"))
      .def_static(
          "over",
          [](const Slab& parameters, const Optimizer& optimizer, int non_finite,
             std::vector<Slab> state) {
            return std::make_unique<Updater>(Parameters(parameters), optimizer,
                                             static_cast<NonFinite>(non_finite), std::move(state));
          },
          nb::arg("parameters"), nb::arg("optimizer"), nb::arg("non_finite"), nb::arg("state"))
      .def("apply", &Updater::apply, nb::arg("gradients"), nb::arg("scale"),
           nb::call_guard<WithoutGil>())
      .def(
          "apply_rows",
          [](Updater& updater, const std::string& block, nb::handle rows, nb::handle values,
             double scale) {
            const Buffer row_bytes(rows, "rows"), value_bytes(values, "values");
            WithoutGil unlocked;
            return updater.apply_rows(block, values_of<int64_t>(row_bytes),
                                      values_of<float>(value_bytes), scale);
          },
          nb::arg("block"), nb::arg("rows"), nb::arg("values"), nb::arg("scale"))
      .def_prop_ro("state", [](const Updater& updater) { return updater.state(); })
      .def_prop_rw("step", &Updater::step, &Updater::set_step)
      .def_prop_ro("skipped", &Updater::skipped)
      .def_prop_ro("non_finite", &Updater::non_finite)
      .def_prop_ro("norm", &Updater::norm)
      .def_prop_ro("lr", &Updater::lr);
}

}  // namespace penstock::python
