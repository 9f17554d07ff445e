#include "loader_workers.h"

#include <nanobind/stl/string.h>

#include "penstock/base/os.h"
#include "python_worker.h"

namespace nb = nanobind;

namespace penstock::python {

LoaderWorkers::LoaderWorkers(PlanEngine& engine, const SampleSettings& settings)
    : engine_(engine),
      settings_(settings),
      places_(engine.settings().workers, engine.settings().places) {}

void LoaderWorkers::run_thread(uint32_t worker, const Source& source) {
  GilHandover* handover = nullptr;
#ifndef Py_GIL_DISABLED
  engine_.ring().sleepers().set_exclusive(true);
  handover = &handover_;
#endif
  PythonWorker python(settings_, source.source.ptr(), source.collate.ptr(), source.update.ptr(),
                      engine_.ring(), {}, handover);
  serve(engine_.ring(), worker, python, &engine_.memory());
}

std::unique_ptr<TicketRunner> LoaderWorkers::in_line(const Source& source) {
  return std::make_unique<PythonWorker>(settings_, source.source.ptr(), source.collate.ptr(),
                                        source.update.ptr(), engine_.ring(),
                                        ResultOutlet::Target{});
}

// An error that ends a thread of the engine (out of memory) ends the loader, and is raised in the
// thread that waits for batches.
void LoaderWorkers::start_plan(uint32_t threads) {
  const bool timed = engine_.settings().timeout_ns >= 0;
  natives_ = std::make_unique<WorkerPool>(engine_.ring(), timed ? &supervisor() : nullptr);
  natives_->start(threads, [plan = &engine_](uint32_t place) {
    std::unique_ptr<TicketRunner> chain = plan->make_worker(false);
    serve(plan->ring(), place, *chain, &plan->memory());
  });
}

void LoaderWorkers::run_plan_thread(uint32_t worker, [[maybe_unused]] bool functions) {
#ifndef Py_GIL_DISABLED
  if (functions) engine_.ring().sleepers().set_exclusive(true);
#endif
  WithoutGil unlocked;
  std::unique_ptr<TicketRunner> chain = engine_.make_worker(false);
  serve(engine_.ring(), worker, *chain, &engine_.memory());
}

void LoaderWorkers::start_stream_reader() {
  stream_thread_ = std::thread([this] {
    os::block_all_signals();
    try {
      engine_.run_stream_reader();
    } catch (...) {
      {
        std::lock_guard lock(ended_by_mutex_);
        if (ended_by_ == nullptr) ended_by_ = std::current_exception();
      }
      engine_.ring().close();
    }
  });
}

nb::tuple LoaderWorkers::supervise() {
  Supervisor::Event event;
  {
    WithoutGil unlocked;
    event = supervisor().wait();
  }
  static const char* const names[] = {"nothing", "died", "abandoned", "failed", "closed"};
  return nb::make_tuple(names[static_cast<int>(event.kind)], event.worker, event.ready,
                        nb::bytes(event.detail.data(), event.detail.size()));
}

void LoaderWorkers::attach(uint32_t worker, int pidfd, int link, int64_t pid) {
  engine_.ring().place(worker).pid.store(pid);
  supervisor().attach(worker, os::Fd(pidfd), os::Fd(link));
}

void LoaderWorkers::send_update(uint64_t version, int fd, int64_t worker) {
  WithoutGil unlocked;
  if (worker < 0) {
    supervisor().send_update(version, fd);
  } else {
    supervisor().send_update_to(static_cast<uint32_t>(worker), version, fd);
  }
}

nb::tuple LoaderWorkers::run_remote(uint32_t place, RemoteConnection& connection) {
  TicketRing& ring = engine_.ring();
  const auto worker = std::make_shared<RemoteWorker>(ring, engine_.arena(), connection.take());
  {
    WithoutGil unlocked;
    {
      std::lock_guard lock(remotes_mutex_);
      remotes_[place] = worker;
    }
    supervisor().attach_remote(place, [worker] { worker->cut(); });
    serve(ring, place, *worker, &engine_.memory());
    std::lock_guard lock(remotes_mutex_);
    remotes_.erase(place);
  }
  return ending_of(worker->lost() ? worker.get() : nullptr);
}

RemoteLine LoaderWorkers::line(RemoteConnection& connection) {
  return {std::make_shared<RemoteWorker>(engine_.ring(), engine_.arena(), connection.take())};
}

nb::tuple LoaderWorkers::run_routed(uint32_t place, nb::object route, nb::object done) {
  RoutedWorker worker(engine_.plan(), place, std::move(route), std::move(done));
  {
    WithoutGil unlocked;
    supervisor().attach_remote(place, [line = worker.in_use()] { line->cut(); });
    serve(engine_.ring(), place, worker, &engine_.memory());
  }
  return ending_of(worker.lost());
}

// Why the connection of a worker ended, and whether the other host had a ticket then.
nb::tuple LoaderWorkers::ending_of(const RemoteWorker* lost) const {
  std::string why;
  if (lost != nullptr && !engine_.ring().closed()) {
    why = lost->why().empty() ? "the connection was cut" : lost->why();
  }
  return nb::make_tuple(why, lost != nullptr && lost->lost_ticket());
}

void LoaderWorkers::end_remote(uint32_t place, bool charged, uint64_t call) {
  WithoutGil unlocked;
  engine_.ring().place(place).in_hand.store(call, std::memory_order_relaxed);
  supervisor().remote_ended(place, charged);
}

std::shared_ptr<RemoteWorker> LoaderWorkers::remote_at(uint32_t place) {
  std::lock_guard lock(remotes_mutex_);
  const auto found = remotes_.find(place);
  return found == remotes_.end() ? nullptr : found->second;
}

void LoaderWorkers::retire_remote(uint32_t place) {
  if (const auto worker = remote_at(place)) worker->retire();
  engine_.ring().sleepers().rouse(place);
}

void LoaderWorkers::cut_remote(uint32_t place) {
  if (const auto worker = remote_at(place)) worker->cut();
  engine_.ring().sleepers().rouse(place);
}

void LoaderWorkers::throw_fatal() {
  {
    std::lock_guard lock(ended_by_mutex_);
    if (ended_by_ != nullptr) std::rethrow_exception(ended_by_);
  }
  if (natives_ == nullptr) return;
  if (auto fatal = natives_->fatal()) std::rethrow_exception(fatal);
}

void LoaderWorkers::close(double grace) {
  engine_.close_stream();
  supervisor().close(static_cast<int64_t>(grace * 1e9));
  if (natives_ != nullptr) natives_->close(engine_.settings().timeout_ns);
  if (stream_thread_.joinable()) stream_thread_.join();
}

void LoaderWorkers::abandon() {
  if (stream_thread_.joinable()) stream_thread_.detach();
  (void)natives_.release();
}

}  // namespace penstock::python
