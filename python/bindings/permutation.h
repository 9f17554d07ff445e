#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

// The order of a shuffled epoch, for use without a Loader.
void bind_permutation(nanobind::module_& m);

}  // namespace penstock::python
