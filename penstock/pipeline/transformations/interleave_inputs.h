#pragma once

#include <cstdint>
#include <vector>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// InterleaveNode's order where inputs are streams: `cycle` of them are open at a time. State: whose
// turn it is, and of every open input which one it is and its own state.
StreamedRef interleave_inputs(std::vector<StreamedRef> inputs, uint64_t cycle, uint64_t block);

}  // namespace penstock
