#pragma once

#include <vector>

#include "numpy_api.h"
#include "penstock/pipeline/engine/outcome.h"

namespace penstock::python {

// Losses as a Python list of tuples (row, index, reason, replaced, gap): the form in which workers
// hand them over, from threads and from processes. Null: a Python exception is set.
Owned list_of(const std::vector<Loss>& losses);
// The losses in such a list; none in None.
std::vector<Loss> losses_in(PyObject* list);

}  // namespace penstock::python
