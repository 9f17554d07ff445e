#pragma once

#include "penstock/memory/allocator.h"

namespace penstock::python {

// Makes NumPy allocate arrays of at least `threshold` bytes from `arena` (NEP 49), in the calling
// thread's context, so results of user code are already in shared memory. Without space in the
// arena, and below the threshold, malloc is used. Memory is freed according to its address, so
// arrays that existed before stay valid. `arena` is never destroyed. False: another handler is
// installed, and is not changed. With the GIL held.
bool install_numpy_memory(Allocator& arena, size_t threshold);

}  // namespace penstock::python
