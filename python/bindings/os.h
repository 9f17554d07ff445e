#pragma once

namespace nanobind {
class module_;
}

namespace penstock {

// System calls that Python's os module lacks, at least if it was built against an old C library.
void bind_os(nanobind::module_& m);

}  // namespace penstock
