#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/block.h"
#include "penstock/train/ring.h"

namespace penstock::train {

// Memory for batches. A piece of 128 KiB or more is reused once its last holder releases it,
// because new pages cost more than filling them. Keeps at most kMaxPieces pieces. Threads: take()
// one at a time; the memory may be released in any thread.
class BatchPool {
 public:
  static constexpr size_t kMaxPieces = 4;

  // 64-byte aligned, contents undefined. May throw std::bad_alloc.
  std::shared_ptr<std::byte> take(uint64_t bytes);

 private:
  struct Piece {
    std::shared_ptr<std::byte> memory;
    uint64_t bytes;
  };
  std::vector<Piece> pieces_;
};

// Items taken from a channel, in that order: rows of blocks. Items of one spec are one block, which
// is a batch. A value.
class Items {
 public:
  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  // All items have one spec: blocks()[0] is their batch. REQUIRED: not empty.
  bool stacked() const { return blocks_.size() == 1; }
  const std::vector<penstock::Block>& blocks() const { return blocks_; }
  // An item's block and its row in that block.
  std::pair<uint32_t, uint64_t> operator[](size_t item) const { return rows_[item]; }

 private:
  friend class BatchAssembler;
  std::vector<penstock::Block> blocks_;
  std::vector<std::pair<uint32_t, uint64_t>> rows_;
};

// Copies records out of rings, each once: an item of fixed shape straight into its row of the
// batch. An item with leaves of variable length (strings, ragged) is copied a second time, when the
// batch is complete. One thread.
class BatchAssembler {
 public:
  // Space for `max_items` items, which take `queued_bytes` in their rings.
  BatchAssembler(uint64_t max_items, uint64_t queued_bytes, BatchPool& memory)
      : max_items_(max_items), queued_bytes_(queued_bytes), pool_(memory) {}

  uint64_t space() const { return full_ ? 0 : max_items_ - items_.rows_.size(); }
  // Copies the ring's oldest record, `record`, whose spec is `spec`. False: no space for an item of
  // this kind. Error kDataLoss: the record's sizes do not match its spec. If the record was
  // overwritten meanwhile, ignore such an error.
  bool copy(const Ring& ring, const Ring::Record& record, const SpecRef& spec);
  // Adds the copied record to the items. Error kDataLoss: the record is not an item.
  void keep();

  Items finish();

 private:
  bool copy_row(const Ring& ring, const Ring::Record& record, uint64_t from);

  const uint64_t max_items_;
  const uint64_t queued_bytes_;
  BatchPool& pool_;
  bool full_ = false;
  Items items_;

  // The batch of the first item's spec, if that is fixed.
  SpecRef spec_;
  BlockLayout layout_, row_layout_;
  std::shared_ptr<std::byte> memory_;
  uint64_t rows_ = 0, used_ = 0;

  // Other items: each a block of its own.
  struct Single {
    SpecRef spec;
    std::shared_ptr<std::byte> memory;
    uint64_t bytes = 0;
  };
  bool is_row_ = false;  // the copied record is the batch's next row
  Single copied_;
  std::vector<penstock::Block> singles_;
};

}  // namespace penstock::train
