#include "penstock/pipeline/stages/built.h"

#include <utility>

#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {

Built Built::with(const std::function<IndexedRef(IndexedRef)>& stage) const {
  Built built = *this;
  (stream == nullptr ? built.indexed : built.tail) = stage(stream == nullptr ? indexed : tail);
  return built;
}

Built Built::of(StreamedRef stream) {
  Built built;
  built.tail = chunk_source(stream->spec());
  built.stream = std::move(stream);
  return built;
}

}  // namespace penstock
