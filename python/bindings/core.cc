#include "core.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <utility>

#include "dataset.h"
#include "gil.h"
#include "penstock/base/error.h"
#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"
#include "penstock/pipeline/feed/granules.h"
#include "plan_feed.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {

Core::Core(nb::dict s)
    : owner_(getpid()), order_([&] {
        Order::Options o;
        o.length = setting<uint64_t>(s, "length");
        o.batch_size = std::max<uint64_t>(setting<uint64_t>(s, "batch_size"), 1);
        o.shuffle = setting<bool>(s, "shuffle");
        o.seed = setting<uint64_t>(s, "seed");
        o.drop_last = setting<bool>(s, "drop_last");
        o.rank = setting<uint32_t>(s, "rank");
        o.world = setting<uint32_t>(s, "world");
        return o;
      }()) {
  settings_.order = order_.options();
  settings_.samples = setting<bool>(s, "samples");
  settings_.retries = setting<uint32_t>(s, "retries");
  settings_.drop_last = order_.options().drop_last;
  settings_.falls_back = setting<bool>(s, "falls_back");
  settings_.covers = setting<bool>(s, "covers");
  settings_.streams = std::max(setting<uint32_t>(s, "streams"), 1u);
  settings_.on_error = on_error_of(setting<std::string>(s, "on_error"));
  const auto source = setting<std::string>(s, "source");
  const auto by_sampler = setting<bool>(s, "listed");
  if (source == "stream") settings_.source = PlanSettings::Source::kStream;
  processes_ = setting<bool>(s, "processes");

  Feed::Options options;
  options.workers = setting<uint32_t>(s, "workers");
  options.queue = setting<uint32_t>(s, "queue");
  options.max_bytes = setting<uint64_t>(s, "max_bytes");
  options.ordered = setting<bool>(s, "ordered");
  options.pause_at_epochs = setting<bool>(s, "pause");
  options.granule_rows = setting<uint32_t>(s, "granule_rows");
  uint32_t rows = settings_.samples ? static_cast<uint32_t>(order_.options().batch_size) : 1;
  if (by_sampler) {
    rows = setting<uint32_t>(s, "most_rows");
    // Without workers a sampler is asked for no more than what is needed now: it may learn.
    options.on_asking = options.workers == 0;
  }
  std::shared_ptr<const Plan> plan;
  if (!s["plan"].is_none()) {
    plan = nb::cast<const BuiltPlan&>(s["plan"]).plan;
    rows = plan->most_rows();
    options.granule_rows = 0;  // batches are divided as need be
    // Elements that go through the feed by the chunk and come out one by one have one place only.
    if (!plan->batched() && rows > 1) options.ordered = true;
    if (plan->stream() != nullptr) options.ordered = true;
    if (plan->stream() != nullptr && options.workers == 0) {
      options.queue = 1;
      options.on_asking = true;
    }
  }
  const uint32_t share = options.granule_rows;
  shape_.granules = share == 0 ? most_granules(options.workers, rows) : (rows + share - 1) / share;
  shape_.workers = std::max(setting<uint32_t>(s, "places"), 1u);
  shape_.rows = share == 0 ? rows : share;
  if (plan != nullptr) shape_.inner = Sections::lanes_for(*plan, options.workers);
  const Cursor::Shares shares = Cursor::shares_of(
      options.max_bytes, plan != nullptr && plan->stream() != nullptr, !shape_.inner.empty());
  options.max_bytes = shares.feed;
  Tuner::Limits tuning;
  tuning.workers = setting<bool>(s, "tune_workers");
  tuning.queue = setting<bool>(s, "tune_queue");
  if (options.workers > 0 && (tuning.workers || tuning.queue)) {
    tuning.most_workers = options.workers;
    tuning.max_bytes = options.max_bytes;
    options.tuning = tuning;
  }
  const uint32_t longest =
      options.tuning && tuning.queue ? std::max(options.queue, tuning.most_queue) : options.queue;
  shape_.posts = 2 * (longest + options.workers) + 2;
  board_ = Board::create(shape_, processes_);
  arena_ = std::make_unique<Allocator>(
      Region::create(processes_ ? Region::Kind::kShared : Region::Kind::kPrivate));
  rows_ = std::make_unique<LocalRows>(*arena_);
  std::unique_ptr<ListedTickets> listed;
  if (by_sampler) {
    listed = std::make_unique<ListedTickets>(nb::object(s["begin"]), *arena_);
    listed_ = listed.get();
  }
  if (plan != nullptr) {
    auto tickets = std::make_unique<PlanTickets>(plan);
    if (listed != nullptr) tickets->set_lists(std::move(listed));
    tickets_ = std::move(tickets);
  } else if (listed != nullptr) {
    tickets_ = std::move(listed);
  } else if (source == "stream") {
    tickets_ = std::make_unique<StreamTickets>(settings_.streams, rows, options.workers);
  } else {
    auto indexed = std::make_unique<IndexedTickets>(order_);
    indexed_ = indexed.get();
    tickets_ = std::move(indexed);
  }
  Supervisor::Policy policy;
  policy.raise = settings_.on_error == OnError::kRaise && (plan == nullptr || !plan->policies());
  policy.processes = processes_;
  double timeout = setting<double>(s, "timeout");
  policy.timeout_ns = timeout_ns_ = timeout < 0 ? -1 : static_cast<int64_t>(timeout * 1e9);
  supervisor_ = std::make_unique<Supervisor>(*board_, *arena_, policy);
  values_ =
      std::make_unique<UnitValues>(processes_, *board_, *supervisor_, [this] { check_open(); });
  losses_ = std::make_unique<LossLog>(board_->consumer());
  std::function<void(Unit&)> discard = [this](Unit& unit) { let_go(unit); };
  if (plan != nullptr && !processes_) discard = [](Unit& unit) { (void)take_outcome(unit); };
  feed_ = std::make_unique<Feed>(*board_, *arena_, *tickets_, options, std::move(discard));
  if (plan == nullptr) return;
  PlanFeed::Options of;
  of.sample = nb::cast<const BuiltPlan&>(s["plan"]).sample;
  of.seed = settings_.order.seed;
  of.retries = settings_.retries;
  of.skip = settings_.on_error == OnError::kSkip;
  of.processes = processes_;
  of.workers = options.workers;
  of.queue = options.queue;
  of.longest_queue = longest;
  of.shares = shares;
  of.attend = [this] {
    if (!attend()) throw Raised::take();
  };
  auto& tickets = static_cast<PlanTickets&>(*tickets_);
  plan_feed_ = std::make_unique<PlanFeed>(
      std::move(plan), PlanFeed::Engine{*board_, *arena_, *feed_, tickets, *values_, *losses_}, of);
}

Core::~Core() {
  const bool ours = getpid() == owner_;
  if (ours) close(0);
  if (ours && ended()) {
    plan_feed_.reset();  // with what its sections made; it needs the others
    feed_->drain();
    return;
  }
  // A forked child's copy: the threads are not here, and everything else is the parent's. Or, at
  // the end of the program, a thread is stuck that may still go on with it.
  if (cursor_.joinable()) cursor_.detach();
  (void)natives_.release();
  (void)rows_.release();
  (void)inline_.release();
  (void)plan_feed_.release();
  (void)feed_.release();
  (void)supervisor_.release();
  (void)arena_.release();
  (void)board_.release();
}

void Core::close(double grace) {
  if (getpid() != owner_) return;
  {
    WithoutGil unlocked;
    if (plan_feed_ != nullptr) plan_feed_->close();
    supervisor_->close(static_cast<int64_t>(grace * 1e9));
    if (natives_ != nullptr) natives_->close(timeout_ns_);
    if (cursor_.joinable()) cursor_.join();
  }
  // What leads back to Python would otherwise be a cycle that its collector cannot see.
  if (consumer_.try_lock()) {
    inline_.reset();
    if (plan_feed_ != nullptr) plan_feed_->close_output();
    consumer_.unlock();
  }
}

void Core::drain() {
  if (getpid() != owner_ || !consumer_.try_lock()) return;  // whoever is in next() goes on to ~Core
  if (plan_feed_ != nullptr) plan_feed_->let_go();
  feed_->drain();
  supervisor_->forget_arenas();
  consumer_.unlock();
}

void Core::check_ours() {
  if (arena_->region()->inherited()) {
    throw Error(Code::kClosed, "Loader",
                "it belongs to the process that made it; make another one in this process");
  }
}

void Core::check_open() {
  check_ours();
  if (!board_->closed()) return;
  // Given away: its traceback will lead back to the loader, a cycle that no collector sees.
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
  board_->close();
}

// ---- workers

void Core::run_thread(uint32_t worker, nb::object source, nb::object collate, nb::object update) {
  PythonWorker::Outlet outlet;
#ifndef Py_GIL_DISABLED
  board_->set_exclusive(true);
  outlet.turn = &turn_;
#endif
  PythonWorker python(settings_, source.ptr(), collate.ptr(), update.ptr(), *board_, outlet);
  serve(*board_, worker, python, rows_.get());
}

void Core::set_inline(nb::object source, nb::object collate, nb::object update) {
  inline_ = std::make_unique<PythonWorker>(settings_, source.ptr(), collate.ptr(), update.ptr(),
                                           *board_, PythonWorker::Outlet{});
}

void Core::start_plan(uint32_t threads) {
  if (threads == 0) inline_ = plan_feed_->chain_worker(true);
  start_natives(threads, [this] { return plan_feed_->chain_worker(false); });
}

// What ends a thread of the engine's (no memory for what it works with) ends the loader, and is
// raised by whoever waits for batches.
void Core::start_natives(uint32_t threads, MakeWorker make) {
  if (threads == 0) return;
  natives_ = std::make_unique<LoaderCrew>(*board_, timeout_ns_ >= 0 ? supervisor_.get() : nullptr);
  natives_->start(threads, [this, make = std::move(make)](uint32_t place) {
    std::unique_ptr<Fulfiller> worker = make();
    serve(*board_, place, *worker, rows_.get());
  });
}

void Core::run_plan_thread(uint32_t worker) {
#ifndef Py_GIL_DISABLED
  board_->set_exclusive(true);
#endif
  WithoutGil unlocked;
  std::unique_ptr<Fulfiller> chain = plan_feed_->chain_worker(false);
  serve(*board_, worker, *chain, rows_.get());
}

void Core::start_cursor() {
  cursor_ = std::thread([this] {
    os::block_all_signals();
    try {
      plan_feed_->run_cursor();
    } catch (...) {
      {
        std::lock_guard lock(ended_by_mutex_);
        if (ended_by_ == nullptr) ended_by_ = std::current_exception();
      }
      board_->close();
    }
  });
}

void Core::run_cursor() { plan_feed_->run_cursor(); }

nb::tuple Core::supervise() {
  Supervisor::Event event;
  {
    WithoutGil unlocked;
    event = supervisor_->wait();
  }
  static const char* const names[] = {"nothing", "died", "abandoned", "failed", "closed"};
  return nb::make_tuple(names[static_cast<int>(event.kind)], event.worker, event.ready,
                        nb::bytes(event.detail.data(), event.detail.size()));
}

void Core::attach(uint32_t worker, int pidfd, int link, int64_t pid) {
  board_->place(worker).pid.store(pid);
  supervisor_->attach(worker, os::Fd(pidfd), os::Fd(link));
}

void Core::send_update(uint64_t version, int fd, int64_t worker) {
  WithoutGil unlocked;
  if (worker < 0) {
    supervisor_->send_update(version, fd);
  } else {
    supervisor_->send_update_to(static_cast<uint32_t>(worker), version, fd);
  }
}

// ---- the face

nb::object EpochIterator::next() {
  Core& core = engine();
  // One that had given everything may be overtaken before it is asked once more.
  over_ = over_ || (gave_all_ && !core.is_current(serial_));
  if (over_) throw nb::stop_iteration();
  nb::object batch;
  try {
    batch = core.next(epoch_, serial_);
  } catch (...) {
    over_ = true;
    throw;
  }
  if (batch.ptr() != end_marker()) {
    gave_all_ = core.gave_all(epoch_);
    return batch;
  }
  over_ = true;
  if (core.is_current(serial_)) finished_(epoch_);
  throw nb::stop_iteration();
}

int EpochIterator::traverse(visitproc visit, void* arg) const {
  Py_VISIT(core_.ptr());
  Py_VISIT(finished_.ptr());
  return 0;
}

void EpochIterator::clear() {
  over_ = true;
  finished_.reset();
}

namespace {

int traverse_iterator(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<EpochIterator>(self)->traverse(visit, arg) : 0;
}

int clear_iterator(PyObject* self) {
  nb::inst_ptr<EpochIterator>(self)->clear();
  return 0;
}

PyType_Slot iterator_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_iterator)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_iterator)},
                                {0, nullptr}};

}  // namespace

void bind_core(nb::module_& m) {
  m.attr("END") = nb::borrow(end_marker());
  nb::class_<EpochIterator>(m, "EpochIterator", nb::type_slots(iterator_slots))
      .def(nb::init<nb::object, uint64_t, nb::object>())
      .def(
          "__iter__", [](nb::handle self) { return self; },
          nb::sig("def __iter__(self) -> EpochIterator"))
      .def("__next__", &EpochIterator::next)
      .def("close", &EpochIterator::clear);
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
      .def("end_iteration", &Core::end_iteration)
      .def("is_current", &Core::is_current)
      .def("check_open", &Core::check_open)
      .def("count_restart", &Core::count_restart)
      .def("start_plan", &Core::start_plan)
      .def("run_plan_thread", &Core::run_plan_thread)
      .def("start_cursor", &Core::start_cursor)
      .def("run_cursor", &Core::run_cursor, nb::call_guard<WithoutGil>())
      .def("begin_pass", &Core::begin_pass)
      .def("holds", &Core::holds)
      .def("plan_state", &Core::plan_state)
      .def("check_plan_state", &Core::check_plan_state)
      .def("restore_plan", &Core::restore_plan)
      .def("supervise", &Core::supervise)
      .def("attach", &Core::attach)
      .def("send_update", &Core::send_update)
      .def("board_fd", &Core::board_fd)
      .def("arena_fd", &Core::arena_fd)
      .def("set_fatal", &Core::set_fatal)
      .def("stats", &Core::stats)
      .def("report_html",
           [](Core& core, nb::dict about) { return report_html(core.snapshot(about)); })
      .def("chrome_trace",
           [](Core& core, nb::dict about) { return chrome_trace(core.snapshot(about)); })
      .def("analysis", [](Core& core, nb::dict about) {
        Analysis a = analyse(core.snapshot(about));
        nb::dict out;
        std::string_view name = name_of(a.bottleneck);
        out["bottleneck"] = nb::str(name.data(), name.size());
        out["verdict"] = a.verdict;
        out["recommendations"] = a.recommendations;
        out["seconds"] = a.seconds;
        out["batches_per_second"] = a.batches_per_second;
        out["samples_per_second"] = a.samples_per_second;
        out["wait_share"] = a.wait_share;
        out["step_ms"] = a.step_ms;
        out["work_ms"] = a.work_ms;
        out["workers_enough"] = a.workers_enough;
        return out;
      });
}

}  // namespace penstock::python
