#pragma once

#include "penstock/memory/allocator.h"

namespace penstock::python {

// Makes NumPy draw arrays of at least `threshold` bytes from `arena` (NEP 49), for the calling
// thread's context: what user code returns then lies in shared memory already. Where the arena has
// no space, and below the threshold, it is malloc as ever; freeing goes by address, so arrays of
// before and of after live side by side. `arena` is never destroyed. False: another handler is
// installed already, and was left alone. Holding the GIL.
bool install_numpy_memory(Allocator& arena, size_t threshold);

}  // namespace penstock::python
