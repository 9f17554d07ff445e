#pragma once

#include "penstock/observe/analysis.h"

namespace penstock {

// Adds what to change to `analysis.recommendations`, most useful first. All else of the analysis is
// there already. Any thread.
void recommend(const Snapshot& snapshot, Analysis& analysis);

// Whether there is advice on such copies; the others are as they should be.
bool avoidable(CopyReason reason);

}  // namespace penstock
