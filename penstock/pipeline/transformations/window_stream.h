#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/transformations/window.h"

namespace penstock {

// How many windows there are over so many elements. REQUIRED: options.shift is not 0.
uint64_t windows_over(uint64_t elements, const WindowOptions& options);

// Windows over a stream: its elements are held as long as a window may still want them. One that
// failed is passed on at once, and is in no window: those behind it move up. REQUIRED:
// options.shift is not 0.
StreamedRef window_stream(StreamedRef input, const WindowOptions& options, std::string title);

}  // namespace penstock
