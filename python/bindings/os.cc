#include "penstock/base/os.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "module.h"
#include "penstock/base/text.h"

namespace nb = nanobind;

namespace penstock {

void bind_os(nb::module_& m) {
  m.def(
      "memory_file", [](const char* name) { return os::memory_file(name).release(); },
      nb::arg("name"), "An anonymous file; the caller owns the descriptor.");
  m.def(
      "open_process", [](int pid) { return os::open_process(pid).release(); }, nb::arg("pid"),
      "A handle of a process; the caller owns the descriptor.");
  m.def("send_signal", &os::send_signal, nb::arg("pidfd"), nb::arg("signal"),
        "Signal the process behind a handle; no effect if it has ended.");
  m.def(
      "die_with_parent", [](int pidfd) { os::exit_with(os::Fd(pidfd), 1); }, nb::arg("pidfd"),
      "End this process as soon as the one behind `pidfd` has ended. Takes the descriptor.");
  m.def("memory_headroom", &os::memory_headroom,
        "Bytes that may be used now before something is killed.");
  m.def(
      "without_secrets",
      [](nb::str text) {
        // Names of files may have bytes that are not text, as lone surrogates.
        const auto bytes =
            nb::steal<nb::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
        if (!bytes.is_valid()) throw nb::python_error();
        const std::string clean = without_secrets({bytes.c_str(), bytes.size()});
        return nb::steal<nb::str>(PyUnicode_DecodeUTF8(
            clean.data(), static_cast<Py_ssize_t>(clean.size()), "surrogatepass"));
      },
      nb::arg("text"), "A text without the passwords and parameters of its URLs.");
}

}  // namespace penstock
