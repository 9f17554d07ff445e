#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/loader_state.h"
#include "penstock/pipeline/plan.h"

namespace penstock {

// Error kInvalidArgument: `state` was not taken of this plan; the text says which stage differs.
void check_same_plan(const LoaderState& state, const Plan& plan, uint64_t seed);

// Error kInvalidArgument: so many `what` ("batches", "elements") of an epoch were not delivered by
// that many ranks, for there are `all`. As many are its end.
void check_within_epoch(uint64_t delivered, uint64_t all, uint64_t ranks, const char* what);

}  // namespace penstock
