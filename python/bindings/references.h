#pragma once

#include <memory>

#include "numpy_api.h"

namespace penstock::python {

// A share in a Python object that may end on any thread, also one without the GIL, at any time: the
// reference is given back then and there if the thread has the GIL, else the next time that
// somebody has it (release_references(), or the main thread's next instruction). It never waits for
// the GIL, whatever its holder has locked. With the GIL held.
std::shared_ptr<void> share(PyObject* object);

// Gives back what ended without the GIL; next to nothing where there is none. With the GIL held.
void release_references();

}  // namespace penstock::python
