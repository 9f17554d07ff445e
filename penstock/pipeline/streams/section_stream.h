#pragma once

#include <cstdint>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// A costly stretch in front of a stream's stage: the elements of `serial` (an indexed stage read in
// order, or a stream with its tail), which workers make where the cursor has some
// (Context::sections), as section `number` of the plan. Elements, order, failures and states are
// the same either way: `serial`'s own.
StreamedRef section_stream(uint32_t number, StreamedRef serial);

}  // namespace penstock
