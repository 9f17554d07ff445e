#pragma once

#include <string>

#include "held.h"
#include "penstock/pipeline/plan/node.h"

namespace penstock::python {

// The values of a generator function, or of any callable whose result is iterable. It is called
// again for each epoch, and to restore a place. It runs on a Python thread of the consumer's
// process, some elements ahead.
Node::Ref generator_source(UserObjectRef function, std::string title);

}  // namespace penstock::python
