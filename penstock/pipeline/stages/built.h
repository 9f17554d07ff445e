#pragma once

#include <cstdint>
#include <functional>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// What a node becomes: either an indexed stage, or a stream, which a cursor goes through, and an
// indexed tail, which tickets apply to the elements that the cursor hands out.
struct Built {
  IndexedRef indexed = nullptr;
  StreamedRef stream = nullptr;
  IndexedRef tail = nullptr;   // never null beside `stream`
  uint64_t per_output = 1;     // elements of the stream that one element of the tail takes
  bool whole_outputs = false;  // what is left at the end and is fewer is left out
  bool may_fail = false;       // the tail has a function, which may fail for an element
  bool leaves_out = false;     // and an on_error, which leaves such an element out

  // Of a stage that makes each element of one element: `stage` on top of what is there.
  Built with(const std::function<IndexedRef(IndexedRef)>& stage) const;
  static Built of(StreamedRef stream);
  // Makes the elements that leave: the tail's, behind a stream.
  const Indexed& chain() const { return stream == nullptr ? *indexed : *tail; }
};

// What becomes of an element of a stream that fails: the next on_error behind its stage says so, or
// else the feed.
struct FailurePolicy {
  bool skip = false;        // the element is left out; else its failure is raised
  bool feed_skips = false;  // what no on_error decides
  bool sure = false;    // it is so whatever a stage keeps of the elements, and for whatever feed
  bool by_feed = true;  // no on_error says so
};

}  // namespace penstock
