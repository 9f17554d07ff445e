#include "penstock/io/record_index.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace penstock {

RecordIndex RecordIndex::equal(uint64_t offset, uint64_t bytes, uint64_t count) {
  RecordIndex index;
  index.size_ = count;
  index.first_ = offset;
  index.step_ = bytes;
  index.end_ = offset + bytes * count;
  return index;
}

bool RecordIndex::is_damaged(uint64_t record) const {
  return std::binary_search(damaged_.begin(), damaged_.end(), record);
}

size_t RecordIndex::memory_bytes() const {
  return sizeof(uint64_t) * (groups_.capacity() + wide_.capacity() + damaged_.capacity()) +
         sizeof(uint32_t) * relative_.capacity();
}

void RecordIndex::Builder::add(uint64_t offset, bool damaged) {
  RecordIndex& index = index_;
  const uint64_t record = index.size_++;
  if (damaged) index.damaged_.push_back(record);
  if (record % kGroup == 0) index.groups_.push_back(offset);
  uint64_t group = index.groups_.back();
  if (!(group & kWide) && offset - group > std::numeric_limits<uint32_t>::max()) {
    widen();
    group = index.groups_.back();
  }
  if (group & kWide) index.wide_.push_back(offset);
  index.relative_.push_back(group & kWide ? 0 : static_cast<uint32_t>(offset - group));
}

void RecordIndex::Builder::widen() {
  uint64_t& group = index_.groups_.back();
  const uint64_t place = index_.wide_.size();
  const size_t first = (index_.groups_.size() - 1) * kGroup;
  for (size_t i = first; i < index_.relative_.size(); ++i) {
    index_.wide_.push_back(group + index_.relative_[i]);
  }
  group = place | kWide;
}

RecordIndex RecordIndex::Builder::finish(uint64_t end) {
  index_.end_ = end;
  index_.groups_.shrink_to_fit();
  index_.relative_.shrink_to_fit();
  index_.wide_.shrink_to_fit();
  index_.damaged_.shrink_to_fit();
  return std::exchange(index_, RecordIndex());
}

}  // namespace penstock
