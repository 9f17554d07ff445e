#include "core.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <utility>

#include "dataset.h"
#include "gil.h"
#include "module.h"
#include "observe.h"
#include "penstock/base/error.h"
#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"
#include "python_op.h"
#include "transports.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

EngineSettings engine_settings_of(const nb::dict& s) {
  EngineSettings e;
  e.seed = setting<uint64_t>(s, "seed");
  e.retries = setting<uint32_t>(s, "retries");
  e.on_error = on_error_of(setting<std::string>(s, "on_error"));
  e.workers = setting<uint32_t>(s, "workers");
  e.places = setting<uint32_t>(s, "places");
  e.processes = setting<bool>(s, "processes");
  e.queue = setting<uint32_t>(s, "queue");
  e.max_bytes = setting<uint64_t>(s, "max_bytes");
  e.ordered = setting<bool>(s, "ordered");
  e.pause_at_epochs = setting<bool>(s, "pause");
  e.tune_workers = setting<bool>(s, "tune_workers");
  e.tune_queue = setting<bool>(s, "tune_queue");
  const auto timeout = setting<double>(s, "timeout");
  if (timeout >= 0) e.timeout_ns = static_cast<int64_t>(timeout * 1e9);
  return e;
}

}  // namespace

Core::Core(nb::dict s)
    : settings_(sample_settings_of(s)),
      places_(setting<uint32_t>(s, "workers"), setting<uint32_t>(s, "places")),
      owner_(getpid()) {
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
}

Core::~Core() {
  const bool ours = getpid() == owner_;
  if (ours) close(0);
  if (ours && ended()) {
    natives_.reset();
    consumer_.reset();
    engine_.reset();  // before values_, because it discards values
    return;
  }
  // In a forked child the threads do not exist, and everything else belongs to the parent. At the
  // end of the program a stuck thread may still use the engine.
  if (stream_thread_.joinable()) stream_thread_.detach();
  (void)natives_.release();
  (void)consumer_.release();
  (void)engine_.release();
}

void Core::close(double grace) {
  if (getpid() != owner_) return;
  {
    WithoutGil unlocked;
    engine_->close_stream();
    supervisor().close(static_cast<int64_t>(grace * 1e9));
    if (natives_ != nullptr) natives_->close(engine_->settings().timeout_ns);
    if (stream_thread_.joinable()) stream_thread_.join();
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
  supervisor().arenas().forget();
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
  if (fatal_.is_valid()) raise(std::exchange(fatal_, nb::object()));
  {
    std::lock_guard lock(ended_by_mutex_);
    if (ended_by_ != nullptr) std::rethrow_exception(ended_by_);
  }
  if (natives_ != nullptr) {
    if (auto fatal = natives_->fatal()) std::rethrow_exception(fatal);
  }
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void Core::raise(nb::object exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void Core::set_fatal(nb::object exception) {
  if (!fatal_.is_valid()) fatal_ = std::move(exception);
  ring().close();
}

// ---- workers

void Core::run_thread(uint32_t worker, nb::object source, nb::object collate, nb::object update) {
  PythonWorker::Outlet outlet;
#ifndef Py_GIL_DISABLED
  ring().sleepers().set_exclusive(true);
  outlet.handover = &handover_;
#endif
  PythonWorker python(settings_, source.ptr(), collate.ptr(), update.ptr(), ring(), outlet);
  serve(ring(), worker, python, &engine_->memory());
}

void Core::set_inline(nb::object source, nb::object collate, nb::object update) {
  consumer_->work_in_line(std::make_unique<PythonWorker>(
      settings_, source.ptr(), collate.ptr(), update.ptr(), ring(), PythonWorker::Outlet{}));
}

// An error that ends a thread of the engine (out of memory) ends the loader, and is raised in the
// thread that waits for batches.
void Core::start_plan(uint32_t threads) {
  if (threads == 0) {
    consumer_->work_in_line(engine_->make_worker(true));
    return;
  }
  const bool timed = engine_->settings().timeout_ns >= 0;
  natives_ = std::make_unique<WorkerPool>(ring(), timed ? &supervisor() : nullptr);
  natives_->start(threads, [plan = engine_.get()](uint32_t place) {
    std::unique_ptr<TicketRunner> chain = plan->make_worker(false);
    serve(plan->ring(), place, *chain, &plan->memory());
  });
}

void Core::run_plan_thread(uint32_t worker, [[maybe_unused]] bool functions) {
#ifndef Py_GIL_DISABLED
  if (functions) ring().sleepers().set_exclusive(true);
#endif
  WithoutGil unlocked;
  std::unique_ptr<TicketRunner> chain = engine_->make_worker(false);
  serve(ring(), worker, *chain, &engine_->memory());
}

void Core::start_stream_reader() {
  stream_thread_ = std::thread([this] {
    os::block_all_signals();
    try {
      engine_->run_stream_reader();
    } catch (...) {
      {
        std::lock_guard lock(ended_by_mutex_);
        if (ended_by_ == nullptr) ended_by_ = std::current_exception();
      }
      ring().close();
    }
  });
}

nb::tuple Core::supervise() {
  Supervisor::Event event;
  {
    WithoutGil unlocked;
    event = supervisor().wait();
  }
  static const char* const names[] = {"nothing", "died", "abandoned", "failed", "closed"};
  return nb::make_tuple(names[static_cast<int>(event.kind)], event.worker, event.ready,
                        nb::bytes(event.detail.data(), event.detail.size()));
}

void Core::attach(uint32_t worker, int pidfd, int link, int64_t pid) {
  ring().place(worker).pid.store(pid);
  supervisor().attach(worker, os::Fd(pidfd), os::Fd(link));
}

void Core::send_update(uint64_t version, int fd, int64_t worker) {
  WithoutGil unlocked;
  if (worker < 0) {
    supervisor().send_update(version, fd);
  } else {
    supervisor().send_update_to(static_cast<uint32_t>(worker), version, fd);
  }
}

// ---- bindings

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
      .def("run_thread", &Core::run_thread, nb::arg("worker"), nb::arg("source"),
           nb::arg("collate").none(), nb::arg("update"))
      .def("set_inline", &Core::set_inline, nb::arg("source"), nb::arg("collate").none(),
           nb::arg("update"))
      .def("begin_iteration", &Core::begin_iteration)
      .def("is_current", &Core::is_current)
      .def("check_open", &Core::check_open)
      .def("count_restart", &Core::count_restart)
      .def("take_place", &Core::take_place)
      .def("give_back_place", &Core::give_back_place)
      .def("start_plan", &Core::start_plan)
      .def("run_plan_thread", &Core::run_plan_thread, nb::arg("worker"), nb::arg("functions"))
      .def("start_stream_reader", &Core::start_stream_reader)
      .def("run_stream_reader", &Core::run_stream_reader, nb::call_guard<WithoutGil>())
      .def("begin_pass", &Core::begin_pass)
      .def("holds", &Core::holds)
      .def("state", [](const Core& core) { return core.state().to_json(); })
      .def("check_state", &Core::check_state)
      .def("restore", &Core::restore)
      .def("supervise", &Core::supervise)
      .def("attach", &Core::attach)
      .def("send_update", &Core::send_update)
      .def("ring_fd", &Core::ring_fd)
      .def("arena_fd", &Core::arena_fd)
      .def("set_fatal", &Core::set_fatal)
      .def("stats", &Core::stats)
      .def("ready", &Core::ready)
      .def("report_html",
           [](Core& core, nb::dict about) { return report_html(core.snapshot(about)); })
      .def("chrome_trace",
           [](Core& core, nb::dict about) { return chrome_trace(core.snapshot(about)); })
      .def("analysis",
           [](Core& core, nb::dict about) { return dict_of(analyse(core.snapshot(about))); });
}

}  // namespace penstock::python
