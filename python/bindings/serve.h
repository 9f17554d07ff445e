#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

// What worker processes call: serving tickets, and the link to the consumer's process.
void bind_serve(nanobind::module_& m);

}  // namespace penstock::python
