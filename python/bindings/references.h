#pragma once

#include <memory>

#include "numpy_api.h"

namespace penstock::python {

// A shared reference to a Python object that may end on any thread, with or without the GIL. If the
// thread has the GIL, the object is released at once; otherwise later, by release_references() or
// before the main thread's next instruction. The end never waits for the GIL, so it cannot
// deadlock. With the GIL held.
std::shared_ptr<void> share(PyObject* object);

// Releases objects whose references ended without the GIL; very cheap if there are none. With the
// GIL held.
void release_references();

}  // namespace penstock::python
