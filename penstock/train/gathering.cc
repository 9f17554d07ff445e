#include "penstock/train/gathering.h"

#include <algorithm>
#include <array>
#include <new>
#include <numeric>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/collate.h"

namespace penstock::train {
namespace {

constexpr uint32_t kBatch = UINT32_MAX;  // stands for the batch until all are there

uint64_t up_to_unit(uint64_t bytes) {
  return (bytes + kRecordUnit - 1) / kRecordUnit * kRecordUnit;
}

// Blocks of one row each, all of one spec, as one.
penstock::Block joined(const SpecRef& spec, const std::vector<penstock::Block>& singles,
                       BatchMemory& fresh) {
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
  const auto memory = fresh.take(layout.bytes());
  rows.write(layout, memory.get());
  return {rows.spec(), singles.size(), memory.get(), layout.bytes(), memory};
}

}  // namespace

bool Gathering::copy(const Ring& ring, const Ring::Record& record, const SpecRef& spec) {
  const uint64_t from = up_to_unit(sizeof(RecordHeader) + record.spec_bytes);
  const uint64_t bytes = record.bytes - std::min(from, record.bytes);
  if (items_.rows_.empty() && spec_ == nullptr && spec->fixed()) {
    const BlockLayout row(*spec, 1);
    if (row.bytes() <= bytes) {
      spec_ = spec;
      row_layout_ = row;
      // No more of them are there than the bytes allow, whatever the other items are.
      rows_ = std::clamp<uint64_t>(queued_bytes_ / record.bytes, 1, most_);
      layout_ = BlockLayout(*spec, rows_);
      memory_ = fresh_.take(layout_.bytes());
      items_.rows_.reserve(rows_);
    }
  }
  is_row_ = spec_ != nullptr && (spec == spec_ || *spec == *spec_);
  if (is_row_) return copy_row(ring, record, from);
  copied_ = {spec, fresh_.take(bytes), bytes};
  singles_.reserve(most_);  // so that keep() needs no memory
  items_.rows_.reserve(most_);
  ring.copy(record, from, copied_.memory.get(), bytes);
  return true;
}

bool Gathering::copy_row(const Ring& ring, const Ring::Record& record, uint64_t from) {
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

void Gathering::keep() {
  if (is_row_) {
    items_.rows_.emplace_back(kBatch, used_++);
    return;
  }
  singles_.emplace_back(copied_.spec, 1, copied_.memory.get(), copied_.bytes, copied_.memory);
  items_.rows_.emplace_back(static_cast<uint32_t>(singles_.size() - 1), 0);
}

Items Gathering::finish() {
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
      penstock::Block all = joined(singles_[0].spec(), singles_, fresh_);
      singles_.clear();
      singles_.push_back(std::move(all));
    } catch (const std::bad_alloc&) {
      items_.blocks_ = std::move(singles_);  // as they are: they are not to be lost
      return std::move(items_);
    }
    for (uint64_t item = 0; item < items_.rows_.size(); ++item) items_.rows_[item] = {0, item};
  }
  items_.blocks_ = std::move(singles_);
  return std::move(items_);
}

}  // namespace penstock::train
