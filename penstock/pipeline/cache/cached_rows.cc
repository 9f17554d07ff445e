#include "penstock/pipeline/cache/cached_rows.h"

#include <array>
#include <string>
#include <utility>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/stages/schema_checker.h"

namespace penstock {

uint64_t& CachedRows::place_of(const SpecRef& spec) {
  if (last_ != spec) {
    if (places_.size() > kMaxSpecs) places_.clear();
    const auto bytes = spec->bytes();
    last_place_ = &places_[{reinterpret_cast<const char*>(bytes.data()), bytes.size()}];
    last_ = spec;
  }
  return *last_place_;
}

SpecRef& CachedRows::spec_at(uint64_t place) {
  if (specs_.size() > kMaxSpecs) specs_.clear();
  return specs_[place];
}

std::span<const std::byte> CachedRows::block_of(const Chunk& in, uint32_t row,
                                                const BlockLayout& layout) {
  block_.resize(layout.bytes());
  write_row(in, row, layout, block_.data());
  return block_;
}

namespace {

class RowsInMemory : public CachedRows {
 public:
  RowsInMemory(std::shared_ptr<CacheStore> store, uint64_t seed)
      : store_(std::move(store)), used_(store_->keeps(seed)) {}

  uint64_t look(std::span<const uint64_t> positions) override {
    uint64_t there = 0;
    for (size_t i = 0; used_ && i < positions.size(); ++i) {
      const auto entry = store_->find(positions[i]);
      if (!entry) continue;
      found_[i] = *entry;
      there |= uint64_t{1} << i;
    }
    return there;
  }

  void give(uint32_t i, Chunk& out, uint32_t row) override {
    const CacheStore::Entry& entry = found_[i];
    SpecRef& spec = spec_at(entry.spec_place);
    if (spec == nullptr) spec = std::make_shared<ElementSpec>(entry.spec);
    const Block element(spec, 1, entry.block.data(), entry.block.size(), store_);
    settle_schema(spec, out);
    element.view(0, out, row);
    for (Failure& lost : losses_in_text(entry.lost)) out.note(row, std::move(lost));
  }

  void keep(uint64_t position, const Chunk& in, uint32_t row) override {
    if (!used_) return;
    const BlockLayout layout = row_layout(in, row);
    if (!store_->has_space(position, layout.bytes())) return;
    const std::string lost = text_of_losses(in, row);
    store_->put(position, in.spec()->bytes(), place_of(in.spec()), block_of(in, row, layout),
                std::as_bytes(std::span(lost)));
  }

  std::optional<uint64_t> end() override { return used_ ? store_->end() : std::nullopt; }
  void set_end(uint64_t end, const std::string& lost) override {
    if (used_) store_->set_end(end, std::as_bytes(std::span(lost)));
  }
  std::vector<Failure> trailing_losses() override {
    return losses_in_text(store_->trailing_losses());
  }

 private:
  std::shared_ptr<CacheStore> store_;
  const bool used_;
  std::array<CacheStore::Entry, Chunk::kRows> found_;
};

}  // namespace

RowStore memory_store(std::shared_ptr<CacheStore> store) {
  return {store, [store](Context& context) {
            return std::make_unique<RowsInMemory>(store, context.seed);
          }};
}

}  // namespace penstock
