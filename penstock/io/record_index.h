#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Where each record of a file lies. Records follow one another without gaps: what is no record is a
// damaged place, which has a number like any record. 4.1 bytes a record: every 64th place is kept
// as it is, the others relative to it; a group of 64 that spans more than 4 GiB costs 8 a record.
//
// Immutable: any thread may call anything.
class RecordIndex {
 public:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool damaged = false;
    bool operator==(const Place&) const = default;
  };
  class Builder;

  RecordIndex() = default;  // of an empty file

  // `count` records of `bytes` bytes each, the first one at `offset`: no memory.
  // REQUIRED: all of them end before 2^63.
  static RecordIndex equal(uint64_t offset, uint64_t bytes, uint64_t count);

  uint64_t size() const { return size_; }
  uint64_t file_bytes() const { return end_; }  // where the last place ends

  // REQUIRED: record < size().
  Place at(uint64_t record) const {
    const uint64_t begin = offset(record);
    const uint64_t end = record + 1 < size_ ? offset(record + 1) : end_;
    return {begin, end - begin, !damaged_.empty() && is_damaged(record)};
  }

  // at(record) will be asked for soon: for many records in no order.
  void prefetch(uint64_t record) const {
    if (step_ != 0) return;
    __builtin_prefetch(&groups_[record / kGroup]);
    __builtin_prefetch(&relative_[record]);
  }

  // The damaged places' numbers, ascending.
  std::span<const uint64_t> damaged() const { return damaged_; }

  size_t memory_bytes() const;

 private:
  static constexpr uint64_t kGroup = 64;
  static constexpr uint64_t kWide = uint64_t{1} << 63;  // the rest is a place in wide_

  uint64_t offset(uint64_t record) const {
    if (step_ != 0) return first_ + record * step_;
    const uint64_t group = groups_[record / kGroup];
    if (group & kWide) [[unlikely]]
      return wide_[(group & ~kWide) + record % kGroup];
    return group + relative_[record];
  }
  bool is_damaged(uint64_t record) const;

  uint64_t size_ = 0, end_ = 0;
  uint64_t first_ = 0, step_ = 0;  // equal(); else 0
  std::vector<uint64_t> groups_;
  std::vector<uint32_t> relative_;
  std::vector<uint64_t> wide_;
  std::vector<uint64_t> damaged_;
};

// Makes one, place after place. One thread.
class RecordIndex::Builder {
 public:
  // The next place begins here, where the one before ends.
  // REQUIRED: offset is larger than the one before, and less than 2^63.
  void add(uint64_t offset, bool damaged = false);

  // The last place ends here. The Builder is empty again.
  RecordIndex finish(uint64_t end);

 private:
  void widen();

  RecordIndex index_;
};

}  // namespace penstock
