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

// Rows of chunks into what a cache keeps them in and out of it. One thread.
class KeptRows {
 public:
  virtual ~KeptRows() = default;

  // Looks for the elements at these positions, at most 64. Returns a bit for each that is there.
  virtual uint64_t look(std::span<const uint64_t> positions) = 0;
  // The i-th of those, which is there, as row `row` of `out`, with what was lost on the way to it;
  // until the context's scratch is emptied. Errors kInvalidArgument: it is not like the chunk's
  // other rows; kDataLoss: it is damaged.
  virtual void give(uint32_t i, Chunk& out, uint32_t row) = 0;
  // Keeps a row that is alive, with its notes, if there is space for it.
  virtual void keep(uint64_t position, const Chunk& in, uint32_t row) = 0;

  // Elements that there are, of a stream whose end was seen.
  virtual std::optional<uint64_t> end() = 0;
  // `lost`: behind the last one, as text_of_losses.
  virtual void set_end(uint64_t end, const std::string& lost) = 0;
  // That. REQUIRED: the end is known. Error kDataLoss: it is damaged.
  virtual std::vector<Failure> lost_behind() = 0;

 protected:
  static constexpr size_t kMaxSpecs = 256;  // that are remembered

  // Where the chunk's spec was put: 0 at first.
  uint64_t& place_of(const SpecRef& spec);
  // A spec that was read, by where it is; nullptr: not yet.
  SpecRef& spec_at(uint64_t place);
  // The row as a block of one element.
  std::span<const std::byte> block_of(const Chunk& in, uint32_t row, const BlockLayout& layout);

 private:
  std::unordered_map<uint64_t, SpecRef> specs_;
  std::map<std::string, uint64_t> places_;
  SpecRef last_;  // that was put, and where
  uint64_t* last_place_ = nullptr;
  std::vector<std::byte> block_;
};

// What keeps a plan's elements, and how each reader gets at them.
struct Keeping {
  // What elements are made with. In a file they are there for whoever opens it: so the numbers of a
  // plan that a function opened are drawn by the file's name, and not by the place of its opening.
  uint64_t seed(const Context& context) const {
    if (!context.build_seed || !name) return context.seed;
    return derive_key(*context.build_seed, *name, KeyUse::kInner);
  }

  std::shared_ptr<SharedStore> store;
  std::function<std::unique_ptr<KeptRows>(Context& context)> rows;
  std::optional<uint64_t> name = std::nullopt;  // of the file, as a number
};
// In memory. A store keeps the elements of one seed: readers with another one find nothing there.
Keeping keep_in_memory(std::shared_ptr<CacheStore> store);
// In a file; see SnapshotStore, whose errors rows() and keep() throw. `path`: as the user wrote it.
Keeping keep_in_file(std::shared_ptr<SnapshotStore> store, const std::string& path);
// The same for reading only, whatever the seed.
std::unique_ptr<KeptRows> rows_of(std::shared_ptr<SnapshotStore> store, Context& context);

}  // namespace penstock
