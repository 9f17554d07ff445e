#pragma once

namespace nanobind {
class module_;
}

namespace penstock {

// A fast hash of large buffers, to detect changes.
void bind_digest(nanobind::module_& m);

}  // namespace penstock
