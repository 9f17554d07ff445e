#pragma once

#include <string>

#include "held.h"
#include "penstock/pipeline/plan/node.h"

namespace penstock::python {

// What a generator function yields, or any callable whose result can be iterated over: called anew
// for each epoch, and to go back to a place. It runs on one of Python's threads, in the consumer's
// process, some elements ahead.
Node::Ref generator_source(UserObjectRef function, std::string title);

}  // namespace penstock::python
