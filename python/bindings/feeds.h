#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

void bind_feeds(nanobind::module_& m);

}  // namespace penstock::python
