#pragma once

#include <cstdint>
#include <string>

#include "held.h"
#include "penstock/pipeline/plan/node.h"

namespace penstock::python {

// Any object with __len__ and __getitem__: element i is object[i]. It is read by a Python thread,
// which takes the GIL once per chunk.
Node::Ref python_source(UserObjectRef object, uint64_t length, std::string title);

}  // namespace penstock::python
