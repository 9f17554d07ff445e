#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "penstock/base/random.h"
#include "penstock/pipeline/cache/cache_store.h"
#include "penstock/pipeline/cache/snapshot_store.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// Stores rows of chunks in a cache and restores them. One thread.
class CachedRows {
 public:
  virtual ~CachedRows() = default;

  // Looks up at most 64 positions. Returns a bit mask of those that are cached.
  virtual uint64_t look(std::span<const uint64_t> positions) = 0;
  // Makes element i of the last look(), which is cached, row `row` of `out`, with its losses. Valid
  // until the context's scratch is emptied. Errors kInvalidArgument: its schema differs from that
  // of the chunk's other rows; kDataLoss: it is damaged.
  virtual void give(uint32_t i, Chunk& out, uint32_t row) = 0;
  // Stores a row that is alive, with its notes, if there is space.
  virtual void keep(uint64_t position, const Chunk& in, uint32_t row) = 0;

  // The number of elements of a stream; nothing: its end was not reached yet.
  virtual std::optional<uint64_t> end() = 0;
  // `lost`: the losses after the last element, as text_of_losses.
  virtual void set_end(uint64_t end, const std::string& lost) = 0;
  // The `lost` of set_end(). REQUIRED: the end is known. Error kDataLoss: it is damaged.
  virtual std::vector<Failure> trailing_losses() = 0;

 protected:
  static constexpr size_t kMaxSpecs = 256;  // bound of specs_ and places_

  // The place of a chunk's spec in the store; 0: not stored yet.
  uint64_t& place_of(const SpecRef& spec);
  // The spec that was read from this place; nullptr: not read yet.
  SpecRef& spec_at(uint64_t place);
  // The row as a block of one element.
  std::span<const std::byte> block_of(const Chunk& in, uint32_t row, const BlockLayout& layout);

 private:
  std::unordered_map<uint64_t, SpecRef> specs_;
  std::map<std::string, uint64_t> places_;
  SpecRef last_;  // the spec of the last place_of() call, and its place
  uint64_t* last_place_ = nullptr;
  std::vector<std::byte> block_;
};

// A store of a plan's elements, and how a reader accesses it.
struct RowStore {
  // The seed to make the elements with. A file is shared by all who open it. So in a plan that a
  // function opened, it depends on the file's name and not on the place where the plan was opened.
  uint64_t seed(const Context& context) const {
    if (!context.build_seed || !name) return context.seed;
    return derive_key(*context.build_seed, *name, KeyUse::kInner);
  }

  std::shared_ptr<SharedStore> store;
  std::function<std::unique_ptr<CachedRows>(Context& context)> rows;
  std::optional<uint64_t> name = std::nullopt;  // hash of the file's path, if there is a file
};
// In memory. A store keeps the elements of one seed; readers with another seed find nothing.
RowStore memory_store(std::shared_ptr<CacheStore> store);
// In a file; rows() and keep() throw the errors of SnapshotStore. `path`: as the user wrote it.
RowStore file_store(std::shared_ptr<SnapshotStore> store, const std::string& path);
// The same for reading only, with any seed.
std::unique_ptr<CachedRows> rows_of(std::shared_ptr<SnapshotStore> store, Context& context);

}  // namespace penstock
