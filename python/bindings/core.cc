#include "core.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <utility>

#include "dataset.h"
#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"
#include "python_op.h"
#include "transports.h"

namespace nb = nanobind;

namespace penstock::python {

PyObject* end_marker() {
  static PyObject* marker = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return marker;
}

namespace {

constexpr int64_t kSignalCheckNs = 100'000'000;

EngineSettings engine_settings_of(const nb::dict& s) {
  EngineSettings e;
  e.seed = setting<uint64_t>(s, "seed");
  e.retries = setting<uint32_t>(s, "retries");
  e.on_error = on_error_of(setting<std::string>(s, "on_error"));
  e.workers = setting<uint32_t>(s, "workers");
  e.places = setting<uint32_t>(s, "places");
  e.processes = setting<bool>(s, "processes");
  e.shared_memory = setting<bool>(s, "shared_memory");
  e.queue = setting<uint32_t>(s, "queue");
  e.max_bytes = setting<uint64_t>(s, "max_bytes");
  e.ordered = setting<bool>(s, "ordered");
  e.pause_at_epochs = setting<bool>(s, "pause");
  e.tune_workers = setting<bool>(s, "tune_workers");
  e.tune_queue = setting<bool>(s, "tune_queue");
  e.whole_batches = setting<uint32_t>(s, "remote_places") > 0;
  const auto timeout = setting<double>(s, "timeout");
  if (timeout >= 0) e.timeout_ns = static_cast<int64_t>(timeout * 1e9);
  return e;
}

}  // namespace

Core::Core(nb::dict s) : settings_(sample_settings_of(s)), owner_(getpid()) {
  const auto& built = nb::cast<const BuiltPlan&>(s["plan"]);
  const bool python = built.count != nullptr;
  count_ = built.count;
  if (!python) objects_ = std::make_unique<PlanObjects>(built.plan, built.sample);
  EngineSettings settings = engine_settings_of(s);
  if (python) settings.granule_rows = setting<uint32_t>(s, "granule_rows");
  TicketEngine::MakeTickets describer;
  if (setting<bool>(s, "listed")) {
    describer = [&](Allocator& arena) {
      auto made = std::make_unique<ListedTickets>(nb::object(s["begin"]), arena);
      listed_ = made.get();
      return made;
    };
  } else if (settings_.source == SampleSettings::Source::kStream) {
    describer = [&](Allocator&) {
      return std::make_unique<StreamTickets>(settings_.streams, built.plan->max_rows(),
                                             settings.workers);
    };
  }
  auto transport = [this](TicketEngine& engine) -> std::unique_ptr<PlanEngine::Transport> {
    auto attend = [this] {
      try {
        this->attend();
      } catch (nb::python_error& error) {
        error.restore();
        throw Raised::take();
      }
    };
    values_ = std::make_unique<TaskValues>(engine.settings().processes, engine.ring(),
                                           *engine.supervisor(), [this] { check_open(); });
    if (objects_ != nullptr && !engine.settings().processes) {
      return std::make_unique<ThreadTransport>(attend);
    }
    return std::make_unique<ValueTransport>(*values_, attend);
  };
  engine_ = std::make_unique<PlanEngine>(built.plan, settings, transport, describer);
  consumer_ = std::make_unique<Consumer>(*engine_, static_cast<Consumer::Policy&>(*this));
  if (python) batches_.emplace(*engine_, *values_);
  failures_.emplace(*engine_, *consumer_, *values_, python, listed_ != nullptr);
  statistics_.emplace(*engine_, settings_, python);
  workers_.emplace(*engine_, settings_);
}

Core::~Core() {
  const bool ours = getpid() == owner_;
  if (ours) close(0);
  if (ours && ended()) {
    workers_.reset();
    consumer_.reset();
    engine_.reset();  // before values_, because it discards values
    return;
  }
  // In a forked child the threads do not exist, and everything else belongs to the parent. At the
  // end of the program a stuck thread may still use the engine.
  workers_->abandon();
  (void)consumer_.release();
  (void)engine_.release();
}

void Core::close(double grace) {
  if (getpid() != owner_) return;
  {
    WithoutGil unlocked;
    workers_->close(grace);
  }
  // Python's collector cannot see a cycle through these references to Python objects.
  if (consuming_.try_lock()) {
    consumer_->drop_worker();
    engine_->close_output();
    consuming_.unlock();
  }
}

void Core::drain() {
  // If a thread is in next(), ~Core does it.
  if (getpid() != owner_ || !consuming_.try_lock()) return;
  engine_->release();
  scheduler().drain();
  engine_->supervisor()->arenas().forget();
  consuming_.unlock();
}

void Core::check_ours() {
  if (engine_->inherited()) {
    throw Error(Code::kClosed, "Loader",
                "it belongs to the process that made it; make another one in this process");
  }
}

void Core::check_open() {
  check_ours();
  if (!closed()) return;
  // Not kept: its traceback refers to the loader, a cycle that the collector cannot see.
  if (fatal_.is_valid()) raise_exception(std::exchange(fatal_, nb::object()));
  workers_->throw_fatal();
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void Core::set_fatal(nb::object exception) {
  if (!fatal_.is_valid()) fatal_ = std::move(exception);
  ring().close();
}

void Core::set_inline(const LoaderWorkers::Source& source) {
  consumer_->work_in_line(workers_->in_line(source));
}

// ---- the consumer

void Core::settle() {
  ConsumerLock lock = consume();
  for (;;) {
    check_open();
    {
      WithoutGil unlocked;
      if (scheduler().settle(kSignalCheckNs)) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object Core::next(uint64_t serial) {
  ConsumerLock lock = consume();
  check_open();
  if (consumer_->check_iteration(serial) && consumer_->next()) return std::move(batch_);
  return nb::borrow(end_marker());
}

void Core::leave_round() {
  if (listed_ != nullptr) {
    if (Owned error = listed_->take_error()) raise_exception(nb::steal(error.release()));
  }
  {
    WithoutGil unlocked;
    engine_->leave_round();
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void Core::wait() {
  {
    WithoutGil unlocked;
    scheduler().wait(kSignalCheckNs);
    workers_->handover().want();
  }
  workers_->handover().have();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void Core::hand_out(const PlanOutput::Item& item) { batch_ = objects_->object_of(item); }

bool Core::take() {
  if (!batches_) return consumer_->hand_out(engine_->take());
  batch_ = batches_->take();
  return batch_.is_valid();
}

// ---- place

void Core::begin_epoch(uint64_t epoch) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->enter_round(epoch);
}

void Core::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->seek({epoch, base, step}, {ahead.begin(), ahead.end()});
}

nb::tuple Core::position() {
  const Position at = engine_->position();
  return nb::make_tuple(at.epoch, at.base, at.step);
}

std::vector<uint64_t> Core::ahead() {
  return {scheduler().ahead().begin(), scheduler().ahead().end()};
}

void Core::set_length(uint64_t length, uint64_t version) {
  ConsumerLock lock = consume();
  settings_.order.length = length;
  count_->store(length, std::memory_order_release);
  engine_->length_changed(version);
}

bool Core::holds() {
  ConsumerLock lock = consume();
  return engine_->holds();
}

uint64_t Core::begin_pass(bool resumed) {
  ConsumerLock lock = consume();
  check_open();
  return consumer_->begin_pass(resumed);
}

void Core::restore(const std::string& state) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->restore(LoaderState::from_json(state));
}

// ---- bindings

namespace {

// A method of the Core's workers, as one of the Core.
template <class Result, class... Arguments>
auto of_workers(Result (LoaderWorkers::*method)(Arguments...)) {
  return [method](Core& core, Arguments... arguments) -> Result {
    return (core.workers().*method)(std::forward<Arguments>(arguments)...);
  };
}

}  // namespace

void bind_core(nb::module_& m) {
  m.attr("END") = nb::borrow(end_marker());
  m.attr("MAX_WORKERS") = kMaxWorkers;
  m.def("thread_places", &ThreadPlaces::needed, nb::arg("workers"));
  nb::class_<Core>(m, "Core", "One Loader's engine. Internal: use penstock.Loader.")
      .def(nb::init<nb::dict>())
      .def("next", &Core::next)
      .def("begin_epoch", &Core::begin_epoch)
      .def("seek", &Core::seek)
      .def("position", &Core::position)
      .def("ahead", &Core::ahead)
      .def("failed", &Core::failed)
      .def("steps", &Core::steps)
      .def("set_length", &Core::set_length)
      .def("closed", &Core::closed)
      .def("close", &Core::close)
      .def("ended", &Core::ended)
      .def("drain", &Core::drain)
      .def("settle", &Core::settle)
      .def("begin_iteration", &Core::begin_iteration)
      .def("is_current", &Core::is_current)
      .def("check_open", &Core::check_open)
      .def("begin_pass", &Core::begin_pass)
      .def("holds", &Core::holds)
      .def("state", [](const Core& core) { return core.state().to_json(); })
      .def("check_state", &Core::check_state)
      .def("restore", &Core::restore)
      .def("ring_fd", &Core::ring_fd)
      .def("arena_fd", &Core::arena_fd)
      .def("set_fatal", &Core::set_fatal)
      .def("ready", &Core::ready)
      .def(
          "set_inline",
          [](Core& core, nb::object source, nb::object collate, nb::object update) {
            core.set_inline({std::move(source), std::move(collate), std::move(update)});
          },
          nb::arg("source"), nb::arg("collate").none(), nb::arg("update"))
      .def(
          "run_thread",
          [](Core& core, uint32_t worker, nb::object source, nb::object collate,
             nb::object update) {
            core.workers().run_thread(worker,
                                      {std::move(source), std::move(collate), std::move(update)});
          },
          nb::arg("worker"), nb::arg("source"), nb::arg("collate").none(), nb::arg("update"))
      .def("start_plan",
           [](Core& core, uint32_t threads) {
             if (threads == 0) {
               core.start_plan_inline();
             } else {
               core.workers().start_plan(threads);
             }
           })
      .def("run_plan_thread", of_workers(&LoaderWorkers::run_plan_thread), nb::arg("worker"),
           nb::arg("functions"))
      .def("start_stream_reader", of_workers(&LoaderWorkers::start_stream_reader))
      .def("run_stream_reader", &Core::run_stream_reader, nb::call_guard<WithoutGil>())
      .def("count_restart", of_workers(&LoaderWorkers::count_restart))
      .def("take_place", of_workers(&LoaderWorkers::take_place))
      .def("give_back_place", of_workers(&LoaderWorkers::give_back_place))
      .def("supervise", of_workers(&LoaderWorkers::supervise))
      .def("attach", of_workers(&LoaderWorkers::attach))
      .def("send_update", of_workers(&LoaderWorkers::send_update))
      .def("run_remote", of_workers(&LoaderWorkers::run_remote), nb::arg("place"),
           nb::arg("connection"))
      .def("run_routed", of_workers(&LoaderWorkers::run_routed), nb::arg("place"), nb::arg("route"),
           nb::arg("done"))
      .def("remote_line", of_workers(&LoaderWorkers::line), nb::arg("connection"))
      .def("end_remote", of_workers(&LoaderWorkers::end_remote), nb::arg("place"),
           nb::arg("charged"), nb::arg("call"))
      .def("retire_remote", of_workers(&LoaderWorkers::retire_remote))
      .def("cut_remote", of_workers(&LoaderWorkers::cut_remote))
      .def("stats", [](Core& core) { return core.statistics().stats(); })
      .def(
          "report_html",
          [](Core& core, nb::dict about) { return report_html(core.statistics().snapshot(about)); })
      .def("chrome_trace",
           [](Core& core, nb::dict about) {
             return chrome_trace(core.statistics().snapshot(about));
           })
      .def("analysis", [](Core& core, nb::dict about) {
        return dict_of(analyse(core.statistics().snapshot(about)));
      });
}

}  // namespace penstock::python
