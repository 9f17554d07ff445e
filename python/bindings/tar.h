#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

// Writing tar archives, and passes over them for the command line.
void bind_tar(nanobind::module_& m);

}  // namespace penstock::python
