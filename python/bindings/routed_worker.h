#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "penstock/pipeline/plan/plan.h"
#include "penstock/workers/remote_worker.h"

namespace penstock::python {

// A connection to a remote worker that several places use in turn, for Python.
struct RemoteLine {
  std::shared_ptr<RemoteWorker> worker;
};

// The line that a place uses now, for those who end it. Any thread.
class LineInUse {
 public:
  void set(std::shared_ptr<RemoteWorker> worker);
  // Ends the connection of this line, and of each that is used later.
  void cut();

 private:
  std::mutex mutex_;
  std::shared_ptr<RemoteWorker> worker_;
  bool cut_ = false;
};

// Runs each ticket over a connection that Python chooses by the ticket's samples, because only some
// hosts have their files.
//
// Made and destroyed with the GIL; run() belongs to one thread, without the GIL.
class RoutedWorker : public TicketRunner {
 public:
  // `route(place, indices)` returns a RemoteLine for a ticket with these samples; None if the
  // Loader is closed; or a text, why no host can run the ticket. It may wait. `done(place)`: the
  // line is free again; not called for a line whose connection ended. Both do not raise.
  // REQUIRED: `plan` is of a Python data set with __getitem__, without a sampler.
  RoutedWorker(const Plan& plan, uint32_t place, nanobind::object route, nanobind::object done)
      : plan_(plan), place_(place), route_(std::move(route)), done_(std::move(done)) {}

  void run(const Ticket& ticket, Slot& slot) override;
  bool ended() const override { return lost_ != nullptr; }

  std::shared_ptr<LineInUse> in_use() const { return in_use_; }
  // After serve(): the line whose connection ended; null: none.
  const RemoteWorker* lost() const { return lost_.get(); }

 private:
  std::shared_ptr<RemoteWorker> routed(const Ticket& ticket);
  nanobind::list indices_of(const Ticket& ticket) const;

  const Plan& plan_;
  const uint32_t place_;
  const nanobind::object route_, done_;
  const std::shared_ptr<LineInUse> in_use_ = std::make_shared<LineInUse>();
  std::shared_ptr<RemoteWorker> lost_;
};

}  // namespace penstock::python
