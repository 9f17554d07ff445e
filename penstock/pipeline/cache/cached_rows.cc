#include "penstock/pipeline/cache/cached_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
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

namespace {

class RowsInFile : public CachedRows {
 public:
  RowsInFile(std::shared_ptr<SnapshotStore> store, Context& context)
      : store_(std::move(store)), scratch_(context.scratch) {}

  uint64_t look(std::span<const uint64_t> positions) override {
    size_t count = 0;
    uint64_t there = 0;
    for (uint32_t i = 0; i < positions.size(); ++i) {
      const auto place = store_->find(positions[i]);
      if (!place) continue;
      found_[i] = {positions[i], *place, scratch_.take(place->bytes()), nullptr};
      there |= uint64_t{1} << i;
      in_order_[count++] = i;
    }
    read(std::span(in_order_.data(), count));
    return there;
  }

  void give(uint32_t i, Chunk& out, uint32_t row) override {
    const Found& found = found_[i];
    if (found.error != nullptr) std::rethrow_exception(found.error);
    try {
      SnapshotRecordHeader head;
      std::memcpy(&head, found.data, sizeof(head));
      const uint64_t space = found.place.bytes() - sizeof(head);
      if (head.bytes > space || space - head.bytes >= kSnapshotUnit || head.lost > head.bytes) {
        throw Error(Code::kDataLoss, "snapshot", "its length is wrong");
      }
      std::byte* block = found.data + sizeof(head);
      if (head.checksum({block, head.bytes}) != head.crc) {
        throw Error(Code::kDataLoss, "snapshot", "its checksum is wrong");
      }
      if (head.position != found.position) {
        throw Error(Code::kDataLoss, "snapshot",
                    "element " + std::to_string(head.position) + " is there");
      }
      SpecRef& spec = spec_at(head.spec);
      if (spec == nullptr) spec = std::make_shared<ElementSpec>(store_->spec(head.spec));
      const uint64_t bytes = head.bytes - head.lost;
      const Block element(spec, 1, block, bytes, nullptr);
      settle_schema(spec, out);
      element.view(0, out, row);
      for (Failure& lost : losses_in_text({block + bytes, head.lost}))
        out.note(row, std::move(lost));
    } catch (const Error& error) {
      if (error.code() != Code::kDataLoss) throw;
      const std::string why = std::string(error.what()).substr(error.operation().size() + 2);
      throw Error(Code::kDataLoss, "snapshot",
                  store_->path() + ", element " + std::to_string(found.position) + ", byte " +
                      std::to_string(found.place.offset()) + ": " + why + "; " + store_->remedy());
    }
  }

  void keep(uint64_t position, const Chunk& in, uint32_t row) override {
    const BlockLayout layout = row_layout(in, row);
    const std::string lost = text_of_losses(in, row);
    store_->put(position, in.spec()->bytes(), place_of(in.spec()), block_of(in, row, layout),
                std::as_bytes(std::span(lost)));
  }

  std::optional<uint64_t> end() override { return store_->end(); }
  void set_end(uint64_t end, const std::string& lost) override {
    store_->set_end(end, std::as_bytes(std::span(lost)));
  }
  std::vector<Failure> trailing_losses() override {
    const std::vector<std::byte> lost = store_->trailing_losses();
    try {
      return losses_in_text(lost);
    } catch (const Error&) {
      throw Error(Code::kDataLoss, "snapshot",
                  store_->path() + ": what was lost behind its last element is not said; " +
                      store_->remedy());
    }
  }

 private:
  struct Found {
    uint64_t position = 0;
    SnapshotPlace place{0};
    std::byte* data = nullptr;
    std::exception_ptr error;  // error of reading it
  };

  // Reads neighbouring records in one call. If that fails, reads each by itself.
  void read(std::span<uint32_t> rows) {
    if (rows.empty()) return;
    std::ranges::sort(rows, {}, [&](uint32_t i) { return found_[i].place.offset(); });
    size_t count = 0;
    for (uint32_t i : rows) {
      segments_[count++] = {found_[i].place.offset(), found_[i].data, found_[i].place.bytes()};
    }
    try {
      return store_->file()->read(std::span(segments_.data(), count));
    } catch (const Error&) {
    }
    for (size_t s = 0; s < count; ++s) {
      try {
        store_->file()->read(std::span(&segments_[s], 1));
      } catch (const Error& error) {
        const Found& found = found_[rows[s]];
        found_[rows[s]].error =
            std::make_exception_ptr(Error(error.code(), "snapshot",
                                          "element " + std::to_string(found.position) + ": " +
                                              error.what() + "; " + store_->remedy()));
      }
    }
  }

  std::shared_ptr<SnapshotStore> store_;
  Scratch& scratch_;
  std::array<Found, Chunk::kRows> found_;
  std::array<uint32_t, Chunk::kRows> in_order_;
  std::array<File::Segment, Chunk::kRows> segments_;
};

}  // namespace

std::unique_ptr<CachedRows> rows_of(std::shared_ptr<SnapshotStore> store, Context& context) {
  return std::make_unique<RowsInFile>(std::move(store), context);
}

RowStore file_store(std::shared_ptr<SnapshotStore> store, const std::string& path) {
  return {store,
          [store](Context& context) {
            store->set_seed(context.outermost_seed());
            return rows_of(store, context);
          },
          crc32c(std::as_bytes(std::span(path)))};
}

}  // namespace penstock
