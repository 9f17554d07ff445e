#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "penstock/memory/region.h"

namespace penstock {

// Which units of a region have pages. One bit per unit; grows, never shrinks. Not synchronised.
class Backing {
 public:
  // Makes space for units [0, units). May throw std::bad_alloc, with nothing changed.
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

  // The first maximal stretch in [first, end) whose units all have pages (`present`) or all have
  // none. {end, 0}: none.
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

  // The last maximal stretch in [first, end) of units with pages; {first, 0}: none.
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

// Which stretches of a region are allocated and which are free, in units of 64 KiB. Best fit; free
// neighbours are merged. Pure bookkeeping: never touches the memory itself.
//
// Invariants: spans cover [begin, end) without gaps; no two free spans adjoin; every span owns one
// node of the free index, which is in the index while the span is free, and in the span otherwise.
// So freeing allocates nothing and cannot fail.
//
// Not synchronised. Members without noexcept may throw std::bad_alloc, with nothing changed.
class SpanMap {
 public:
  explicit SpanMap(uint32_t begin) : begin_(begin), end_(begin) {}

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  uint32_t taken() const { return taken_; }  // units
  uint32_t peak_taken() const { return peak_taken_; }

  // Allocates `count` units and returns their start: from the smallest free span that is large
  // enough and has all pages, otherwise from the one that lacks fewest. Spans longer than `longest`
  // are not used. nullopt: no span is large enough.
  std::optional<uint32_t> allocate(uint32_t count, const Backing& backing,
                                   uint32_t longest = UINT32_MAX);
  // How many of the units that allocate() would return lack pages; nullopt: no span is large
  // enough.
  std::optional<uint32_t> missing(uint32_t count, const Backing& backing) const;
  // Allocates from the free span at the end. REQUIRED: 0 < count <= tail().
  uint32_t allocate_from_tail(uint32_t count);

  // Frees the span that starts there. Returns the merged free span.
  Backing::Stretch release(uint32_t start) noexcept;

  // Adds free units at the end.
  void extend(uint32_t count);
  // Free units at the end.
  uint32_t tail() const;

  // grow(): false if the units after the span are not free, or too few.
  bool grow(uint32_t start, uint32_t count) noexcept;
  void shrink(uint32_t start, uint32_t count);

  uint32_t length(uint32_t start) const { return spans_.at(start).count; }

  // Visits free spans, highest first, until `visit` returns false.
  template <typename Visit>
  void visit_free(Visit visit) const {
    for (auto each = spans_.rbegin(); each != spans_.rend(); ++each) {
      if (each->second.free && !visit(Backing::Stretch{each->first, each->second.count})) return;
    }
  }
  // True if [first, first + count) is free.
  bool is_free(uint32_t first, uint32_t count) const;

 private:
  using FreeIndex = std::set<std::pair<uint32_t, uint32_t>>;  // (count, start)
  struct Span {
    uint32_t count;
    bool free;
    FreeIndex::node_type node;  // empty while the node is in the index
  };
  using Spans = std::map<uint32_t, Span>;

  static FreeIndex::node_type make_node();
  void set_free(Spans::iterator span) noexcept;
  void set_taken(Spans::iterator span) noexcept;
  void split(Spans::iterator span, uint32_t count);
  FreeIndex::const_iterator best_fit(uint32_t count, const Backing& backing, uint32_t longest,
                                     uint32_t& missing) const;
  uint32_t split_off_front(Spans::iterator span, uint32_t count);
  void count_taken(uint32_t count);

  uint32_t begin_;
  uint32_t end_;
  uint32_t taken_ = 0;
  uint32_t peak_taken_ = 0;
  Spans spans_;
  FreeIndex free_;
};

// Allocates stretches of a region that have pages, in units of 64 KiB. Combines the free units
// (SpanMap) with the units that have pages (Backing), and grows the region within the given limits.
//
// Every member is called with the allocator's mutex held. Members that take it as `lock` release it
// while they fault pages in; the units concerned are reserved meanwhile.
class PageHeap {
 public:
  static constexpr size_t kUnit = Region::kFirstBlock;
  using Lock = std::unique_lock<std::mutex>;

  // In bytes; as Allocator::Options.
  struct Limits {
    size_t retain, max_bytes, soft_limit;
  };
  PageHeap(std::shared_ptr<Region> region, const Limits& limits);

  Region& region() const { return *region_; }
  uint32_t end() const { return spans_.end(); }  // units of the region so far

  // Allocates `count` units with pages and returns the first; nullopt: no memory. May throw
  // std::bad_alloc (nothing changed).
  std::optional<uint32_t> allocate(Lock& lock, uint32_t count);
  // How many of `count` units allocate() would have to fault in.
  uint32_t missing(uint32_t count) const;
  // An estimate, from previous page faults, of the nanoseconds that allocate() would spend on page
  // faults; 0 if there were none.
  uint64_t fault_ns(uint32_t count) const;
  uint64_t fault_ns_of(uint32_t units) const;  // the same for this many units without pages
  // Frees the span that starts there; pages beyond Limits::retain are returned to the system.
  void release(uint32_t start) noexcept;
  uint32_t length(uint32_t start) const { return spans_.length(start); }

  // Extends an allocated span in place, if possible. May throw std::bad_alloc.
  bool grow(Lock& lock, uint32_t start, uint32_t count);
  void shrink(uint32_t start, uint32_t count);

  // Idle units are allocated units that the caller keeps unused for its next allocation; they count
  // as retained. can_keep_idle(): true if another `count` of them may be kept.
  bool can_keep_idle(uint32_t count) const {
    return size_t{free_backed()} + idle_ + count <= retain_units_;
  }
  void add_idle(uint32_t count) { idle_ += count; }
  void remove_idle(uint32_t count) { idle_ -= count; }

  // Returns the pages of free units to the system, of at least `count` units if enough are free.
  uint32_t trim(uint32_t count) noexcept;

  uint32_t backed() const { return backing_.total(); }  // units with pages
  uint32_t free_backed() const { return backing_.total() + pending_ - spans_.taken(); }
  uint32_t peak_backed() const { return peak_backed_; }
  uint64_t faulted() const { return faulted_; }  // units, ever

 private:
  bool extend(uint32_t count);
  uint32_t max_span_for(uint32_t count) const;
  std::optional<uint32_t> allocate_span(uint32_t count);
  bool within_limits() noexcept;
  bool fault_in(Lock& lock, uint32_t first, uint32_t count);
  void record_fault_time(double unit_ns);
  void mark_backed(uint32_t first, uint32_t count);
  void trim_to_retained() noexcept;

  std::shared_ptr<Region> region_;
  const size_t retain_units_;
  const size_t max_units_;
  const size_t soft_units_;
  SpanMap spans_{1};  // unit 0 is the region's header
  Backing backing_;
  uint32_t longest_ = 0;  // the longest span ever requested
  uint32_t idle_ = 0;
  uint32_t pending_ = 0;  // allocated units whose pages are being faulted in
  uint32_t peak_backed_ = 0;
  uint64_t faulted_ = 0;
  double fault_ns_ = 0;  // of one unit
};

}  // namespace penstock
