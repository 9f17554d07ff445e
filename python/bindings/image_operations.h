#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

// REQUIRED: bind_dataset() was called.
void bind_image_operations(nanobind::module_& m);

}  // namespace penstock::python
