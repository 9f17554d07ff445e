#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/block.h"
#include "penstock/train/batch_memory.h"
#include "penstock/train/ring.h"

namespace penstock::train {

// Items that were taken from a channel, in the order in which they were: rows of blocks. Items of
// one spec are one block, and then a batch. A value.
class Items {
 public:
  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  // All of them are alike: blocks()[0] is a batch of them. REQUIRED: not empty.
  bool stacked() const { return blocks_.size() == 1; }
  const std::vector<penstock::Block>& blocks() const { return blocks_; }
  // Where an item is: a block, and its row in that.
  std::pair<uint32_t, uint64_t> operator[](size_t item) const { return rows_[item]; }

 private:
  friend class Gathering;
  std::vector<penstock::Block> blocks_;
  std::vector<std::pair<uint32_t, uint64_t>> rows_;
};

// Copies records out of rings, each once: an item of fixed shape straight into its row of the
// batch. One that has leaves of variable length (strings, ragged) is copied once more when all are
// there. One thread.
class Gathering {
 public:
  // Room for so many items, which take so many bytes in their rings.
  Gathering(uint64_t most, uint64_t queued_bytes, BatchMemory& memory)
      : most_(most), queued_bytes_(queued_bytes), fresh_(memory) {}

  uint64_t room() const { return full_ ? 0 : most_ - items_.rows_.size(); }
  // Copies the ring's oldest record, `record`, whose spec this is. False: there is no room for one
  // of this kind. Error kDataLoss: its sizes are not those of its spec, unless it was written over.
  bool copy(const Ring& ring, const Ring::Record& record, const SpecRef& spec);
  // What was copied is an item. Error kDataLoss: it is none.
  void keep();

  Items finish();

 private:
  bool copy_row(const Ring& ring, const Ring::Record& record, uint64_t from);

  const uint64_t most_;
  const uint64_t queued_bytes_;
  BatchMemory& fresh_;
  bool full_ = false;
  Items items_;

  // The batch: its first item's spec, if that is fixed.
  SpecRef spec_;
  BlockLayout layout_, row_layout_;
  std::shared_ptr<std::byte> memory_;
  uint64_t rows_ = 0, used_ = 0;

  // Others: each a block of its own.
  struct Single {
    SpecRef spec;
    std::shared_ptr<std::byte> memory;
    uint64_t bytes = 0;
  };
  bool is_row_ = false;  // what was copied is the batch's next row
  Single copied_;
  std::vector<penstock::Block> singles_;
};

}  // namespace penstock::train
