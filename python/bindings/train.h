#pragma once

#include <string>

namespace nanobind {
class list;
}  // namespace nanobind

namespace penstock::train {
class Layout;
struct Threading;
}  // namespace penstock::train

namespace penstock::python {

// From pairs (name, lengths).
train::Layout layout_of(nanobind::list blocks);

// Python threads, named "name 0", "name 1", ..., that run Python steps; Ctrl-C ends a wait for
// them.
train::Threading python_threads(std::string name);

}  // namespace penstock::python
