#pragma once

#include "penstock/pipeline/stages/built.h"

namespace penstock {

// The same stream with `policy`'s decision on each failure that has none: the element is left out
// or raised. What is left out is no row for whoever opens this stream (see placed_reader).
StreamedRef decided_stream(StreamedRef input, const FailurePolicy& policy);

}  // namespace penstock
