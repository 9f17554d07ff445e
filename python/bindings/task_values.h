#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>

#include "codec.h"
#include "penstock/workers/supervisor.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock::python {

// Takes the results of tasks as Python objects. With the GIL held.
class TaskValues {
 public:
  // `processes`: tasks have packets of worker processes; otherwise objects of this process.
  // `check_open` throws after the loader was closed, because the arenas of packets no longer exist
  // then. Ring and supervisor outlive this.
  TaskValues(bool processes, TicketRing& ring, Supervisor& supervisor,
             std::function<void()> check_open);

  // Takes the task's value; None if it has none.
  nanobind::object take(Task& task);
  // Releases the task's value. Takes the GIL.
  void discard(Task& task);

 private:
  nanobind::object decoded(PyObject* made);

  bool processes_;
  TicketRing& ring_;
  std::function<void()> check_open_;
  ArenaOf arena_of_;
};

}  // namespace penstock::python
