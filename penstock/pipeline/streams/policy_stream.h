#pragma once

#include "penstock/pipeline/stages/built.h"

namespace penstock {

// The same stream with `policy`'s decision on each undecided failure: the element is skipped or the
// exception is raised. A reader that is opened by Streamed::open does not see skipped elements (see
// noting_reader).
StreamedRef policy_stream(StreamedRef input, const FailurePolicy& policy);

}  // namespace penstock
