#include "penstock/train/batch_assembler.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <new>
#include <numeric>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/collate.h"

namespace penstock::train {
namespace {

constexpr std::align_val_t kAlignment{64};
// malloc returns blocks of this size to the system immediately.
constexpr uint64_t kLarge = uint64_t{128} << 10;

std::shared_ptr<std::byte> allocate(uint64_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return {memory, [](std::byte* all) { ::operator delete(all, kAlignment); }};
}

constexpr uint32_t kBatch = UINT32_MAX;  // marks the batch's rows until finish()

uint64_t up_to_unit(uint64_t bytes) {
  return (bytes + kRecordUnit - 1) / kRecordUnit * kRecordUnit;
}

// Joins blocks of one row each, all of one spec.
penstock::Block joined(const SpecRef& spec, const std::vector<penstock::Block>& singles,
                       BatchPool& pool) {
  Scratch scratch;
  Collector rows(scratch, Collector::Lengths::kRagged, nullptr);
  rows.begin(spec);
  for (size_t first = 0; first < singles.size(); first += Chunk::kRows) {
    const size_t count = std::min<size_t>(Chunk::kRows, singles.size() - first);
    std::array<uint64_t, Chunk::kRows> positions;
    std::iota(positions.begin(), positions.end(), first);
    Chunk& chunk = rows.add(std::span(positions).first(count));
    for (uint32_t row = 0; row < count; ++row) singles[first + row].view(0, chunk, row);
  }
  rows.settle();
  const BlockLayout layout = rows.layout(singles.size());
  const auto memory = pool.take(layout.bytes());
  rows.write(layout, memory.get());
  return {rows.spec(), singles.size(), memory.get(), layout.bytes(), memory};
}

}  // namespace

std::shared_ptr<std::byte> BatchPool::take(uint64_t bytes) {
  if (bytes < kLarge) return allocate(std::max<uint64_t>(bytes, 1));
  for (Piece& piece : pieces_) {
    // Batches differ in their number of items.
    const bool fits = piece.bytes >= bytes && piece.bytes / 8 <= bytes;
    if (!fits || piece.memory.use_count() != 1) continue;
    // Orders this after all uses by the former holders.
    std::atomic_thread_fence(std::memory_order_acquire);
    return piece.memory;
  }
  const uint64_t size = std::bit_ceil(bytes);  // untouched pages cost nothing
  Piece pool{allocate(size), size};
  if (pieces_.size() == kMaxPieces) pieces_.erase(pieces_.begin());
  pieces_.push_back(pool);
  return pool.memory;
}

bool BatchAssembler::copy(const Ring& ring, const Ring::Record& record, const SpecRef& spec) {
  const uint64_t from = up_to_unit(sizeof(RecordHeader) + record.spec_bytes);
  const uint64_t bytes = record.bytes - std::min(from, record.bytes);
  if (items_.rows_.empty() && spec_ == nullptr && spec->fixed()) {
    const BlockLayout row(*spec, 1);
    if (row.bytes() <= bytes) {
      spec_ = spec;
      row_layout_ = row;
      // An upper bound: all queued bytes as records of this size.
      rows_ = std::clamp<uint64_t>(queued_bytes_ / record.bytes, 1, max_items_);
      layout_ = BlockLayout(*spec, rows_);
      memory_ = pool_.take(layout_.bytes());
      items_.rows_.reserve(rows_);
    }
  }
  is_row_ = spec_ != nullptr && (spec == spec_ || *spec == *spec_);
  if (is_row_) return copy_row(ring, record, from);
  copied_ = {spec, pool_.take(bytes), bytes};
  singles_.reserve(max_items_);  // keep() must not allocate
  items_.rows_.reserve(max_items_);
  ring.copy(record, from, copied_.memory.get(), bytes);
  return true;
}

bool BatchAssembler::copy_row(const Ring& ring, const Ring::Record& record, uint64_t from) {
  if (used_ == rows_) {
    full_ = true;
    return false;
  }
  if (row_layout_.bytes() > record.bytes - std::min(from, record.bytes)) {
    throw Error(Code::kDataLoss, "channel",
                "an item of " + std::to_string(record.bytes) + " bytes is too short for " +
                    spec_->to_string());
  }
  const RowLayout& columns = layout_.fixed();
  for (size_t leaf = 0; leaf < columns.fields().size(); ++leaf) {
    ring.copy(record, from + row_layout_.fixed().fields()[leaf].offset,
              columns.row(memory_.get(), leaf, used_), columns.fields()[leaf].row_bytes);
  }
  return true;
}

void BatchAssembler::keep() {
  if (is_row_) {
    items_.rows_.emplace_back(kBatch, used_++);
    return;
  }
  singles_.emplace_back(copied_.spec, 1, copied_.memory.get(), copied_.bytes, copied_.memory);
  items_.rows_.emplace_back(static_cast<uint32_t>(singles_.size() - 1), 0);
}

Items BatchAssembler::finish() {
  if (used_ > 0) {
    const penstock::Block all(spec_, rows_, memory_.get(), layout_.bytes(), memory_);
    singles_.push_back(all.rows(0, used_));
    for (auto& [block, row] : items_.rows_) {
      if (block == kBatch) block = static_cast<uint32_t>(singles_.size() - 1);
    }
  } else if (singles_.size() > 1 && std::ranges::all_of(singles_, [&](const penstock::Block& each) {
               return each.spec() == singles_[0].spec() || *each.spec() == *singles_[0].spec();
             })) {
    try {
      penstock::Block all = joined(singles_[0].spec(), singles_, pool_);
      singles_.clear();
      singles_.push_back(std::move(all));
    } catch (const std::bad_alloc&) {
      items_.blocks_ = std::move(singles_);  // keep them as single blocks; no item may be lost
      return std::move(items_);
    }
    for (uint64_t item = 0; item < items_.rows_.size(); ++item) items_.rows_[item] = {0, item};
  }
  items_.blocks_ = std::move(singles_);
  return std::move(items_);
}

}  // namespace penstock::train
