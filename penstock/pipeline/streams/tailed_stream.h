#pragma once

#include "penstock/pipeline/stages/built.h"

namespace penstock {

// A stream with its tail applied by the reading thread, for stages that read it in order. State:
// {"ordinal": that of the next element, "state": the stream's state}, and SchemaChecker's members.
StreamedRef tailed_stream(const Built& built);

}  // namespace penstock
