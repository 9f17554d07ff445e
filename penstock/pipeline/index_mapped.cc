#include <algorithm>
#include <array>

#include "penstock/pipeline/stage.h"

namespace penstock {
namespace {

class MappedReader : public IndexedReader {
 public:
  MappedReader(const IndexMapped& stage, std::unique_ptr<IndexedReader> input)
      : stage_(stage), input_(std::move(input)) {}

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    std::array<uint64_t, Chunk::kRows> mapped;
    std::copy(positions.begin(), positions.end(), mapped.begin());
    for (std::span<uint64_t> left(mapped.data(), positions.size()); !left.empty();) {
      At there = at;
      uint32_t count = stage_.map(there, left);
      input_->fetch(there, left.first(count), out, row);
      left = left.subspan(count);
      row += count;
    }
  }

 private:
  const IndexMapped& stage_;
  std::unique_ptr<IndexedReader> input_;
};

}  // namespace

std::unique_ptr<IndexedReader> IndexMapped::reader(Context& context) const {
  return std::make_unique<MappedReader>(*this, input_->reader(context));
}

}  // namespace penstock
