#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "gil.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/engine/worker_pool.h"
#include "penstock/workers/remote_worker.h"
#include "remote_connection.h"
#include "routed_worker.h"
#include "sample_settings.h"

namespace penstock::python {

// The workers of a Loader of Python's: threads of the engine, Python's threads, and the processes
// that Python starts. Any thread, with the GIL.
class LoaderWorkers {
 public:
  // A Python data set with its functions, as PythonWorker takes them.
  struct Source {
    nanobind::object source, collate, update;
  };
  // Both references outlive this, and abandoned threads, too (ended()).
  LoaderWorkers(PlanEngine& engine, const SampleSettings& settings);

  // For a Python data set: one of Python's threads runs tickets until the Loader is closed.
  void run_thread(uint32_t worker, const Source& source);
  // For a Python data set: the worker of a Loader in line.
  std::unique_ptr<TicketRunner> in_line(const Source& source);
  // For a Dataset: starts threads of the engine.
  void start_plan(uint32_t threads);
  // For a Dataset: one of Python's threads runs tickets. `functions`: the plan calls functions of
  // the user's, so that threads may wait for the GIL.
  void run_plan_thread(uint32_t worker, bool functions);
  // For a Dataset with a stream: a thread of the engine reads the stream.
  void start_stream_reader();

  // The place of the replacement of a thread that hangs; the place of a thread that ended.
  uint32_t take_place() { return places_.take(); }
  void give_back_place(uint32_t place) { places_.give_back(place); }
  void count_restart() { engine_.ring().consumer().restarts.add(); }

  // Processes: waits for an event of the supervisor; a new process; an update of the dataset for
  // one, or for all (`worker` < 0).
  nanobind::tuple supervise();
  void attach(uint32_t worker, int pidfd, int link, int64_t pid);
  void send_update(uint64_t version, int fd, int64_t worker);

  // Remote workers: one of Python's threads runs tickets on another host until the connection or
  // the Loader ends, or retire_remote(). Returns why the connection ended (empty: it did not), and
  // whether the other host had a ticket then. Call end_remote() next; `charged`: that ticket was
  // being run; `call`: the Call::word that ended the worker.
  nanobind::tuple run_remote(uint32_t place, RemoteConnection& connection);
  // The same over connections that Python chooses for each ticket; see RoutedWorker.
  nanobind::tuple run_routed(uint32_t place, nanobind::object route, nanobind::object done);
  RemoteLine line(RemoteConnection& connection);
  void end_remote(uint32_t place, bool charged, uint64_t call);
  // Of a place that runs no remote worker: nothing. retire: after the ticket in hand; cut: at once.
  void retire_remote(uint32_t place);
  void cut_remote(uint32_t place);

  // The consumer's side of the workers' GIL.
  GilHandover& handover() { return handover_; }

  // Throws the error that ended a thread of the engine, if there is one.
  void throw_fatal();
  // Without the GIL: waits for the engine's threads that are not abandoned.
  void close(double grace);
  // Whether no thread of the engine is left. An abandoned thread uses the engine's memory when its
  // call returns.
  bool ended() const { return natives_ == nullptr || natives_->ended(); }
  // Before the destructor, if threads are left, or if this process is a fork without the threads:
  // forgets them.
  void abandon();

 private:
  Supervisor& supervisor() { return *engine_.supervisor(); }
  std::shared_ptr<RemoteWorker> remote_at(uint32_t place);
  nanobind::tuple ending_of(const RemoteWorker* lost) const;

  PlanEngine& engine_;
  const SampleSettings& settings_;
  ThreadPlaces places_;
  GilHandover handover_;
  std::unique_ptr<WorkerPool> natives_;  // the engine's threads that run tickets
  std::thread stream_thread_;            // the engine's thread that reads the stream
  std::mutex remotes_mutex_;
  std::map<uint32_t, std::shared_ptr<RemoteWorker>> remotes_;  // by place
  std::mutex ended_by_mutex_;
  std::exception_ptr ended_by_;  // the error that ended stream_thread_
};

}  // namespace penstock::python
