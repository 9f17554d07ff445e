#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gil.h"
#include "penstock/train/thread_group.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Joins a Python thread whose body returns by itself. Ctrl-C is raised later, by the next check for
// signals: the caller owns objects that the thread uses.
void join(nb::handle thread) {
  while (true) {
    try {
      thread.attr("join")();
      return;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_KeyboardInterrupt)) throw;
      PyErr_SetInterrupt();
      if (!nb::cast<bool>(thread.attr("is_alive")())) return;
    }
  }
}

}  // namespace

train::Threading python_threads(std::string name) {
  const auto start = [name = std::move(name)](size_t number, std::function<void()> body) {
    const WithGil locked;
    const nb::object target = nb::cpp_function([body = std::move(body)] {
      const WithoutGil unlocked;
      body();
    });
    const nb::object thread =
        nb::module_::import_("threading")
            .attr("Thread")(nb::arg("target") = target,
                            nb::arg("name") = name + " " + std::to_string(number));
    thread.attr("start")();
    // Dropped with the GIL held, by join.
    PyObject* const started = nb::object(thread).release().ptr();
    return std::function<void()>([started] {
      const WithGil joining;
      join(nb::steal(started));
    });
  };
  return {.start = start, .while_waiting = look_for_signals};
}

}  // namespace penstock::python
