#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

// Passes over whole files, for the command line.
void bind_survey(nanobind::module_& m);

}  // namespace penstock::python
