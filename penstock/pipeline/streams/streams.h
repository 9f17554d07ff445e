#pragma once

#include <cstdint>
#include <memory>

#include "penstock/pipeline/stages/context.h"
#include "penstock/pipeline/stages/stage.h"

// The streams that are made of other stages, and their readers: one function for each.
namespace penstock {

// An indexed stage, read in order. State: {"index": index of the next element}, and SchemaChecker's
// members.
StreamedRef indexed_stream(IndexedRef stage);

// Member `name` of a state. Error kInvalidArgument: it does not exist, or (count_in) is not a
// count.
uint64_t count_in(const State& state, const char* name);
const State& member_of(const State& state, const char* name);

// A stream with its tail applied by the reading thread, for stages that read it in order. State:
// {"ordinal": that of the next element, "state": the stream's state}, and SchemaChecker's members.
StreamedRef tailed_stream(const Built& built);

// The same stream with `policy`'s decision on each undecided failure: the element is skipped or the
// exception is raised. A reader that is opened by Streamed::open does not see skipped elements (see
// noting_reader).
StreamedRef policy_stream(StreamedRef input, const FailurePolicy& policy);

// Removes skipped elements from a stream's rows, and notes each of them on the next row. Those
// after the last row become one more row: a settled failure that carries them all. So stages do
// not handle skipped elements, and a place in the stream does not depend on how many rows are read
// at a time.
//
// State: the input's. While losses wait for the next row: {"lost": [[stage, position, text,
// replaced], ...], "behind": the input's state}.
std::unique_ptr<ElementReader> noting_reader(std::unique_ptr<ElementReader> input,
                                             const Context& context);

// The elements of `serial` (an indexed stage read in order, or a stream with its tail), made in
// parallel as parallel map `number` of the plan. Workers make them if the stream reader's context
// has parallel_maps; otherwise `serial` does. Elements, order, failures and states are those of
// `serial` in both cases.
StreamedRef parallel_map_stream(uint32_t number, StreamedRef serial);

}  // namespace penstock
