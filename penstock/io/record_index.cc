#include "penstock/io/record_index.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

RecordIndex::RecordIndex(const Parts& parts, std::shared_ptr<const void> owner)
    : parts_(parts), owner_(std::move(owner)) {
  const uint64_t groups = parts.size / kGroup + (parts.size % kGroup != 0);
  if (parts.step != 0 || (parts.groups.size() == groups && parts.relative.size() == parts.size)) {
    return;
  }
  throw Error(Code::kInvalidArgument, "index",
              std::to_string(parts.relative.size()) + " places for " + std::to_string(parts.size) +
                  " records");
}

RecordIndex RecordIndex::equal(uint64_t offset, uint64_t bytes, uint64_t count) {
  RecordIndex index;
  index.parts_.size = count;
  index.parts_.first = offset;
  index.parts_.step = bytes;
  index.parts_.end = offset + bytes * count;
  return index;
}

bool RecordIndex::is_damaged(uint64_t record) const {
  return std::binary_search(parts_.damaged.begin(), parts_.damaged.end(), record);
}

size_t RecordIndex::memory_bytes() const {
  return parts_.groups.size_bytes() + parts_.relative.size_bytes() + parts_.wide.size_bytes() +
         parts_.damaged.size_bytes();
}

void RecordIndex::Builder::add(uint64_t offset, bool damaged) {
  const uint64_t record = lists_.relative.size();
  if (damaged) lists_.damaged.push_back(record);
  if (record % kGroup == 0) lists_.groups.push_back(offset);
  uint64_t group = lists_.groups.back();
  if (!(group & kWide) && offset - group > std::numeric_limits<uint32_t>::max()) {
    widen();
    group = lists_.groups.back();
  }
  if (group & kWide) lists_.wide.push_back(offset);
  lists_.relative.push_back(group & kWide ? 0 : static_cast<uint32_t>(offset - group));
}

void RecordIndex::Builder::widen() {
  uint64_t& group = lists_.groups.back();
  const uint64_t place = lists_.wide.size();
  const size_t first = (lists_.groups.size() - 1) * kGroup;
  for (size_t i = first; i < lists_.relative.size(); ++i) {
    lists_.wide.push_back(group + lists_.relative[i]);
  }
  group = place | kWide;
}

RecordIndex RecordIndex::Builder::finish(uint64_t end) {
  lists_.groups.shrink_to_fit();
  lists_.relative.shrink_to_fit();
  lists_.wide.shrink_to_fit();
  lists_.damaged.shrink_to_fit();
  auto lists = std::make_shared<const Lists>(std::exchange(lists_, Lists()));
  Parts parts;
  parts.size = lists->relative.size();
  parts.end = end;
  parts.groups = lists->groups;
  parts.relative = lists->relative;
  parts.wide = lists->wide;
  parts.damaged = lists->damaged;
  return {parts, std::move(lists)};
}

}  // namespace penstock
