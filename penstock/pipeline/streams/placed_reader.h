#pragma once

#include <memory>

#include "penstock/pipeline/stages/context.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// A stream in which every row has a place: what is left out is no row any
// more, but is noted on the row behind it. Only behind the last one it stands for itself, all of it
// in one row that failed. So no stage needs to know of what nobody is to see, and it is at the same
// place however many rows come at a time.
//
// State: the input's; with {"lost": [[stage, position, text, replaced], ...], "behind": the
// input's} where something is lost and what it is to be told with was not given yet.
std::unique_ptr<ElementReader> placed_reader(std::unique_ptr<ElementReader> input,
                                             const Context& context);

}  // namespace penstock
