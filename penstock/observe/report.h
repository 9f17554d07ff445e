#pragma once

#include <string>

#include "penstock/observe/snapshot.h"

namespace penstock {

// One self-contained HTML page (style, script and data inside; it fetches nothing) that shows what
// each worker did over time, which stage is the bottleneck, and what to change. Everything that
// came from outside (names, error texts) is data to the page, whatever it contains.
std::string report_html(const Snapshot& snapshot);

// The same events in the Chrome trace-event format (JSON object form, complete events "ph":"X",
// microseconds), for chrome://tracing and Perfetto.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
std::string chrome_trace(const Snapshot& snapshot);

// Both throw nothing but std::bad_alloc; text that is not UTF-8 is replaced character by character.
// Any thread.

}  // namespace penstock
