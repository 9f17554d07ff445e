#pragma once

#include <cstdint>
#include <span>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// An indexed stage, read in order. State: {"index": the next element's}.
StreamedRef indexed_stream(IndexedRef stage);

// Elements of a stream in rows of `out` from `row` on. Where they tell what they are, `told` is
// what they were so far, and each is made by itself: one that is not like those before it fails,
// wherever a chunk begins, and takes no other one along.
void fetch_alike(IndexedReader& reader, const At& at, std::span<const uint64_t> positions,
                 Chunk& out, uint32_t row, SpecRef& told);

// Member `name` of a state. Error kInvalidArgument: there is none, or it is no count.
uint64_t count_in(const State& state, const char* name);
const State& member_of(const State& state, const char* name);

}  // namespace penstock
