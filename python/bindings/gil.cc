#include "gil.h"

#include <unistd.h>

namespace penstock::python {

void StayWhenEnded::wait_for_the_end() {
  for (;;) pause();
}

void look_for_signals() {
  const WithGil locked;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

}  // namespace penstock::python
