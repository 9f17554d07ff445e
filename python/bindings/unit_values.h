#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>

#include "codec.h"
#include "penstock/workers/board.h"
#include "penstock/workers/supervisor.h"

namespace penstock::python {

// What the units of a board carry, as Python objects. With the GIL held.
class UnitValues {
 public:
  // `processes`: units carry packets of worker processes, else objects of this one. `check_open`
  // throws once the loader was closed, and with it arenas that packets speak of. Board and
  // supervisor outlive it.
  UnitValues(bool processes, Board& board, Supervisor& supervisor,
             std::function<void()> check_open);

  // None: it carries nothing. It is the unit's no longer.
  nanobind::object take(Unit& unit);
  // Lets go of what it carries. Takes the GIL.
  void discard(Unit& unit);

 private:
  nanobind::object decoded(PyObject* made);

  bool processes_;
  Board& board_;
  std::function<void()> check_open_;
  ArenaOf arena_of_;
};

}  // namespace penstock::python
