#pragma once

namespace nanobind {
class module_;
}

namespace penstock {

// What Python's own os module lacks, or lacks where it was built against an old C library.
void bind_os(nanobind::module_& m);

}  // namespace penstock
