#include "penstock/pipeline/node.h"

#include <utility>

#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {

Node::Ref make_node(Node node) {
  for (const Node::Ref& input : node.inputs) (void)given(input.get(), "Dataset", "dataset");
  return std::make_shared<const Node>(std::move(node));
}

Built Built::with(const std::function<IndexedRef(IndexedRef)>& stage) const {
  Built built = *this;
  (stream == nullptr ? built.indexed : built.tail) = stage(stream == nullptr ? indexed : tail);
  return built;
}

// A tail stacks only once: to stack again, the stacked elements become a stream.
Built Built::stacked(Builder& builder, uint64_t n, bool whole,
                     const std::function<IndexedRef(IndexedRef)>& stage) const {
  if (stream == nullptr) return with(stage);
  Built built = per_output == 1 ? builder.without_gaps(*this) : Built::of(builder.as_stream(*this));
  built.per_output = n;
  built.whole_outputs = whole;
  return built.with(stage);
}

Built Built::of(StreamedRef stream) {
  Built built;
  built.tail = chunk_source(stream->spec());
  built.stream = std::move(stream);
  return built;
}

}  // namespace penstock
