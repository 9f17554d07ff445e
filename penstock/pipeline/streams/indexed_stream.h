#pragma once

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// An indexed stage, read in order. State: {"index": index of the next element}, and SchemaChecker's
// members.
StreamedRef indexed_stream(IndexedRef stage);

// Member `name` of a state. Error kInvalidArgument: it does not exist, or (count_in) is not a
// count.
uint64_t count_in(const State& state, const char* name);
const State& member_of(const State& state, const char* name);

}  // namespace penstock
