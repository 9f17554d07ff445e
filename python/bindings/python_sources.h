#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/plan/node.h"
#include "user_object.h"

namespace penstock::python {

// Any object with __len__ and __getitem__: element i is object[i]. It is read by a Python thread,
// which takes the GIL once per chunk.
Node::Ref python_source(UserObjectRef object, uint64_t length, std::string title);

// The values of a generator function, or of any callable whose result is iterable. It is called
// again for each epoch, and to restore a place. It runs on a Python thread of the consumer's
// process, some elements ahead.
Node::Ref generator_source(UserObjectRef function, std::string title);

}  // namespace penstock::python
