#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

// Which units of a region have pages. One bit per unit; grows, never shrinks. Not synchronised.
class Backing {
 public:
  // Room for units [0, units). May throw std::bad_alloc, with nothing changed.
  void resize(uint32_t units) { words_.resize((size_t{units} + 63) / 64); }

  uint32_t total() const { return total_; }  // units that have pages

  bool has(uint32_t unit) const { return words_[unit / 64] >> (unit % 64) & 1; }

  // Units of [first, first + count) without pages.
  uint32_t missing(uint32_t first, uint32_t count) const {
    uint32_t present = 0;
    for_each_word(first, count, [&](size_t word, uint64_t mask) {
      present += static_cast<uint32_t>(std::popcount(words_[word] & mask));
    });
    return count - present;
  }

  void set(uint32_t first, uint32_t count) {
    total_ += missing(first, count);
    for_each_word(first, count, [&](size_t word, uint64_t mask) { words_[word] |= mask; });
  }

  void clear(uint32_t first, uint32_t count) {
    total_ -= count - missing(first, count);
    for_each_word(first, count, [&](size_t word, uint64_t mask) { words_[word] &= ~mask; });
  }

  // The first longest stretch at or after `first`, before `end`, of units that all have pages
  // (`present`) or all have none. An empty stretch ({end, 0}) if there is none.
  struct Stretch {
    uint32_t first;
    uint32_t count;
  };
  Stretch next(uint32_t first, uint32_t end, bool present) const {
    while (first < end && has(first) != present) ++first;
    uint32_t last = first;
    while (last < end && has(last) == present) ++last;
    return {first, last - first};
  }

  // The last longest stretch within [first, end) of units that have pages; {first, 0} for none.
  Stretch last_present(uint32_t first, uint32_t end) const {
    while (end > first && !has(end - 1)) --end;
    uint32_t start = end;
    while (start > first && has(start - 1)) --start;
    return {start, end - start};
  }

 private:
  template <typename Visit>
  static void for_each_word(uint32_t first, uint32_t count, Visit visit) {
    while (count > 0) {
      uint32_t bit = first % 64;
      uint32_t here = count < 64 - bit ? count : 64 - bit;
      uint64_t mask = (here == 64 ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << bit;
      visit(first / 64, mask);
      first += here;
      count -= here;
    }
  }

  std::vector<uint64_t> words_;
  uint32_t total_ = 0;
};

}  // namespace penstock
