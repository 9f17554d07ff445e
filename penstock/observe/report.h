#pragma once

#include <string>

#include "penstock/observe/snapshot.h"

namespace penstock {

// One self-contained HTML page (style, script and data inside; it fetches nothing). It shows what
// each worker did over time, which stage is the bottleneck, and what to change. Text from outside
// (names, error texts) is embedded as data and cannot become markup or script.
std::string report_html(const Snapshot& snapshot);

// The same events in the Chrome trace-event format (JSON object form, complete events "ph":"X",
// microseconds), for chrome://tracing and Perfetto.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
std::string chrome_trace(const Snapshot& snapshot);

// Both throw only std::bad_alloc; invalid UTF-8 is replaced character by character.
// Any thread.

}  // namespace penstock
