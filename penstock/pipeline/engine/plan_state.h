#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/loader_state.h"
#include "penstock/pipeline/plan.h"

namespace penstock {

// Error kInvalidArgument: `state` was not taken of this plan; the text says which stage differs.
void check_same_plan(const LoaderState& state, const Plan& plan, uint64_t seed);

// Error kInvalidArgument: `batches` (or elements) of an epoch were not delivered by that many
// ranks, for there are `all`. As many are its end.
void check_within_epoch(uint64_t batches, uint64_t all, uint64_t ranks);

}  // namespace penstock
