#include "penstock/pipeline/stages/stage.h"

#include <utility>

#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {

std::string IndexMapped::origin(const Context& context, const At& at, uint64_t position) const {
  At below = at;
  map(below, {&position, 1});
  return input_->origin(context, below, position);
}

std::optional<uint64_t> IndexMapped::index(const At& at, uint64_t position) const {
  At below = at;
  map(below, {&position, 1});
  return input_->index(below, position);
}

std::unique_ptr<IndexedReader> IndexMapped::reader(Context& context) const {
  auto map = [this](At& at, std::span<uint64_t> positions) { return this->map(at, positions); };
  return mapped_reader(map, input_->open(context));
}

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
