#include "penstock/pipeline/dataset.h"

#include "penstock/pipeline/sources/range.h"
#include "penstock/pipeline/transformations/batch.h"
#include "penstock/pipeline/transformations/map.h"
#include "penstock/pipeline/transformations/prefetch.h"
#include "penstock/pipeline/transformations/repeat.h"

namespace penstock {
namespace {

template <class N, class... Arguments>
Dataset made(Arguments&&... arguments) {
  return Dataset(std::make_shared<N>(std::forward<Arguments>(arguments)...));
}

}  // namespace

Dataset Dataset::range(int64_t begin, int64_t end, int64_t step) {
  return made<RangeNode>(begin, end, step);
}

Dataset Dataset::map(OpRef op) const { return made<MapNode>(node_, std::move(op)); }
Dataset Dataset::batch(uint64_t n, const BatchOptions& options) const {
  return made<BatchNode>(node_, n, options.drop_remainder);
}
Dataset Dataset::repeat(std::optional<uint64_t> count) const {
  return made<RepeatNode>(node_, count.value_or(kEndless));
}
Dataset Dataset::prefetch(std::optional<uint32_t> batches) const {
  return made<PrefetchNode>(node_, batches);
}

}  // namespace penstock
