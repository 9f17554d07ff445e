#pragma once

#include "penstock/pipeline/stages/built.h"

namespace penstock {

// A stream with its tail applied where it is read, for stages that go through it in order. State:
// {"ordinal": of the next element, "state": the stream's}, and SchemaChecker's.
StreamedRef tailed_stream(const Built& built);

}  // namespace penstock
