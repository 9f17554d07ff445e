#include "penstock/pipeline/index_mapped.h"

namespace penstock {

std::unique_ptr<IndexedReader> IndexMapped::reader(Context& context) const {
  auto map = [this](At& at, std::span<uint64_t> positions) { return this->map(at, positions); };
  return mapped_reader(map, input_->reader(context));
}

}  // namespace penstock
