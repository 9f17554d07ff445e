#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/loader_state.h"
#include "penstock/pipeline/plan.h"

namespace penstock {

// Error kInvalidArgument: `state` was not taken of this plan; the text says which stage differs.
void check_same_plan(const LoaderState& state, const Plan& plan, uint64_t seed);

}  // namespace penstock
