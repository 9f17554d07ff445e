#pragma once

#include <cstdint>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// The elements of `serial` (an indexed stage read in order, or a stream with its tail), made in
// parallel as parallel map `number` of the plan. Workers make them if the stream reader's context
// has parallel_maps; otherwise `serial` does. Elements, order, failures and states are those of
// `serial` in both cases.
StreamedRef parallel_map_stream(uint32_t number, StreamedRef serial);

}  // namespace penstock
