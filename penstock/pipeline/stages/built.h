#pragma once

#include <cstdint>
#include <functional>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// The result of building a node. Either an indexed stage; or a stream, which the stream reader
// reads, with an indexed tail, which tickets apply to the stream's elements.
struct Built {
  IndexedRef indexed = nullptr;
  StreamedRef stream = nullptr;
  IndexedRef tail = nullptr;  // never null beside `stream`
  uint64_t per_output = 1;    // stream elements per element of the tail
  bool drop_partial = false;  // fewer than per_output elements at the end are dropped
  bool may_fail = false;      // the tail has a function, which may fail for an element
  bool may_skip = false;      // the tail may fail, and has an on_error that skips such an element

  // For a stage that makes each element of one input element: puts `stage` on top.
  Built with(const std::function<IndexedRef(IndexedRef)>& stage) const;
  static Built of(StreamedRef stream);
  // The indexed stage on top: the tail, if there is a stream.
  const Indexed& chain() const { return stream == nullptr ? *indexed : *tail; }
};

// The handling of failed elements of a stream. The next on_error after the failing stage decides
// it, or else the feed.
struct FailurePolicy {
  bool skip = false;        // failed elements are skipped; else the exception is raised
  bool feed_skips = false;  // the feed skips failures that no on_error decides
  // An on_error decides, with no cache between the failing stage and it: the decision is the same
  // for every feed.
  bool sure = false;
  bool by_feed = true;  // no on_error decides
};

}  // namespace penstock
