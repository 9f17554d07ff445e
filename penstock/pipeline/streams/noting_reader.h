#pragma once

#include <memory>

#include "penstock/pipeline/stages/context.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Removes skipped elements from a stream's rows, and notes each of them on the next row. Those
// after the last row become one more row: a settled failure that carries them all. So stages do
// not handle skipped elements, and a place in the stream does not depend on how many rows are read
// at a time.
//
// State: the input's. While losses wait for the next row: {"lost": [[stage, position, text,
// replaced], ...], "behind": the input's state}.
std::unique_ptr<ElementReader> noting_reader(std::unique_ptr<ElementReader> input,
                                             const Context& context);

}  // namespace penstock
