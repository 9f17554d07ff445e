#include "python_loader.h"

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

PythonLoader::PythonLoader(nb::dict s) : settings_(sample_settings_of(s)), owner_(getpid()) {
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
      return std::make_unique<RoundRobinTickets>(settings_.streams, built.plan->max_rows(),
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

PythonLoader::~PythonLoader() {
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

void PythonLoader::close(double grace) {
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

void PythonLoader::drain() {
  // If a thread is in next(), ~PythonLoader does it.
  if (getpid() != owner_ || !consuming_.try_lock()) return;
  engine_->release();
  scheduler().drain();
  engine_->supervisor()->arenas().forget();
  consuming_.unlock();
}

void PythonLoader::check_ours() {
  if (engine_->inherited()) {
    throw Error(Code::kClosed, "Loader",
                "it belongs to the process that made it; make another one in this process");
  }
}

void PythonLoader::check_open() {
  check_ours();
  if (!closed()) return;
  // Not kept: its traceback refers to the loader, a cycle that the collector cannot see.
  if (fatal_.is_valid()) raise_exception(std::exchange(fatal_, nb::object()));
  workers_->throw_fatal();
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void PythonLoader::set_fatal(nb::object exception) {
  if (!fatal_.is_valid()) fatal_ = std::move(exception);
  ring().close();
}

void PythonLoader::set_inline(const LoaderWorkers::Source& source) {
  consumer_->work_in_line(workers_->in_line(source));
}

// ---- the consumer

void PythonLoader::settle() {
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

nb::object PythonLoader::next(uint64_t serial) {
  ConsumerLock lock = consume();
  check_open();
  if (consumer_->check_iteration(serial) && consumer_->next()) return std::move(batch_);
  return nb::borrow(end_marker());
}

void PythonLoader::leave_round() {
  if (listed_ != nullptr) {
    if (Owned error = listed_->take_error()) raise_exception(nb::steal(error.release()));
  }
  {
    WithoutGil unlocked;
    engine_->leave_round();
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void PythonLoader::wait() {
  {
    WithoutGil unlocked;
    scheduler().wait(kSignalCheckNs);
    workers_->handover().want();
  }
  workers_->handover().have();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void PythonLoader::hand_out(const PlanOutput::Item& item) { batch_ = objects_->object_of(item); }

bool PythonLoader::take() {
  if (!batches_) return consumer_->hand_out(engine_->take());
  batch_ = batches_->take();
  return batch_.is_valid();
}

// ---- place

void PythonLoader::begin_epoch(uint64_t epoch) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->enter_round(epoch);
}

void PythonLoader::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->seek({epoch, base, step}, {ahead.begin(), ahead.end()});
}

nb::tuple PythonLoader::position() {
  const Position at = engine_->position();
  return nb::make_tuple(at.epoch, at.base, at.step);
}

std::vector<uint64_t> PythonLoader::ahead() {
  return {scheduler().ahead().begin(), scheduler().ahead().end()};
}

void PythonLoader::set_length(uint64_t length, uint64_t version) {
  ConsumerLock lock = consume();
  settings_.order.length = length;
  count_->store(length, std::memory_order_release);
  engine_->length_changed(version);
}

bool PythonLoader::holds() {
  ConsumerLock lock = consume();
  return engine_->holds();
}

uint64_t PythonLoader::begin_pass(bool resumed) {
  ConsumerLock lock = consume();
  check_open();
  return consumer_->begin_pass(resumed);
}

void PythonLoader::restore(const std::string& state) {
  ConsumerLock lock = consume();
  check_open();
  consumer_->restore(LoaderState::from_json(state));
}

// ---- bindings

namespace {

// A method of the PythonLoader's workers, as one of the PythonLoader.
template <class Result, class... Arguments>
auto of_workers(Result (LoaderWorkers::*method)(Arguments...)) {
  return [method](PythonLoader& loader, Arguments... arguments) -> Result {
    return (loader.workers().*method)(std::forward<Arguments>(arguments)...);
  };
}

}  // namespace

void bind_python_loader(nb::module_& m) {
  m.attr("END") = nb::borrow(end_marker());
  m.attr("MAX_WORKERS") = kMaxWorkers;
  m.def("thread_places", &ThreadPlaces::needed, nb::arg("workers"));
  nb::class_<PythonLoader>(m, "PythonLoader", "One Loader's engine. Internal: use penstock.Loader.")
      .def(nb::init<nb::dict>())
      .def("next", &PythonLoader::next)
      .def("begin_epoch", &PythonLoader::begin_epoch)
      .def("seek", &PythonLoader::seek)
      .def("position", &PythonLoader::position)
      .def("ahead", &PythonLoader::ahead)
      .def("failed", &PythonLoader::failed)
      .def("steps", &PythonLoader::steps)
      .def("set_length", &PythonLoader::set_length)
      .def("closed", &PythonLoader::closed)
      .def("close", &PythonLoader::close)
      .def("ended", &PythonLoader::ended)
      .def("drain", &PythonLoader::drain)
      .def("settle", &PythonLoader::settle)
      .def("begin_iteration", &PythonLoader::begin_iteration)
      .def("is_current", &PythonLoader::is_current)
      .def("check_open", &PythonLoader::check_open)
      .def("begin_pass", &PythonLoader::begin_pass)
      .def("holds", &PythonLoader::holds)
      .def("state", [](const PythonLoader& loader) { return loader.state().to_json(); })
      .def("check_state", &PythonLoader::check_state)
      .def("restore", &PythonLoader::restore)
      .def("ring_fd", &PythonLoader::ring_fd)
      .def("arena_fd", &PythonLoader::arena_fd)
      .def("set_fatal", &PythonLoader::set_fatal)
      .def("ready", &PythonLoader::ready)
      .def(
          "set_inline",
          [](PythonLoader& loader, nb::object source, nb::object collate, nb::object update) {
            loader.set_inline({std::move(source), std::move(collate), std::move(update)});
          },
          nb::arg("source"), nb::arg("collate").none(), nb::arg("update"))
      .def(
          "run_thread",
          [](PythonLoader& loader, uint32_t worker, nb::object source, nb::object collate,
             nb::object update) {
            loader.workers().run_thread(worker,
                                        {std::move(source), std::move(collate), std::move(update)});
          },
          nb::arg("worker"), nb::arg("source"), nb::arg("collate").none(), nb::arg("update"))
      .def("start_plan",
           [](PythonLoader& loader, uint32_t threads) {
             if (threads == 0) {
               loader.start_plan_inline();
             } else {
               loader.workers().start_plan(threads);
             }
           })
      .def("run_plan_thread", of_workers(&LoaderWorkers::run_plan_thread), nb::arg("worker"),
           nb::arg("functions"))
      .def("start_stream_reader", of_workers(&LoaderWorkers::start_stream_reader))
      .def("run_stream_reader", &PythonLoader::run_stream_reader, nb::call_guard<WithoutGil>())
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
      .def("stats", [](PythonLoader& loader) { return loader.statistics().stats(); })
      .def("report_html",
           [](PythonLoader& loader, nb::dict about) {
             return report_html(loader.statistics().snapshot(about));
           })
      .def("chrome_trace",
           [](PythonLoader& loader, nb::dict about) {
             return chrome_trace(loader.statistics().snapshot(about));
           })
      .def("analysis", [](PythonLoader& loader, nb::dict about) {
        return dict_of(analyse(loader.statistics().snapshot(about)));
      });
}

}  // namespace penstock::python
