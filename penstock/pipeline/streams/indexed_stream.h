#pragma once

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// An indexed stage, read in order. State: {"index": the next element's}, and SchemaChecker's.
StreamedRef indexed_stream(IndexedRef stage);

// Member `name` of a state. Error kInvalidArgument: there is none, or it is no count.
uint64_t count_in(const State& state, const char* name);
const State& member_of(const State& state, const char* name);

}  // namespace penstock
