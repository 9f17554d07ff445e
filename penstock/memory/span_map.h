#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "penstock/memory/backing.h"

namespace penstock {

// Which stretches of a region are taken and which are free, in units of 64 KiB. Best fit, with
// neighbours merged when they become free. Pure bookkeeping: it knows of no memory.
//
// Invariants: spans cover [begin, end) without gaps; no two free spans touch; every span owns one
// node of the free index, which is in the index while it is free and kept aside while it is taken.
// So freeing needs no memory and cannot fail.
//
// Not synchronised. What may run out of memory throws std::bad_alloc with nothing changed.
class SpanMap {
 public:
  explicit SpanMap(uint32_t begin) : begin_(begin), end_(begin) {}

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  uint32_t taken() const { return taken_; }  // units
  uint32_t peak_taken() const { return peak_taken_; }

  // The start of a span of exactly `count` units: of the free ones that are large enough, the
  // smallest whose pages are there; failing that, the one that lacks fewest. nullopt: none is.
  // Spans longer than `longest` are left whole.
  std::optional<uint32_t> take(uint32_t count, const Backing& backing,
                               uint32_t longest = UINT32_MAX);
  // How many units of what take() would give lack pages; nullopt: nothing is large enough.
  std::optional<uint32_t> missing(uint32_t count, const Backing& backing) const;
  // The first units of the free span at the very end. REQUIRED: 0 < count <= tail().
  uint32_t take_from_tail(uint32_t count);

  // Frees the span that starts there. Returns the free span it became part of.
  Backing::Stretch give(uint32_t start) noexcept;

  // Adds free units at the end.
  void extend(uint32_t count);
  // Free units at the very end.
  uint32_t tail() const;

  // Makes a taken span larger, if what follows is free and large enough, or smaller.
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
    FreeIndex::node_type node;  // empty while it is in the index
  };
  using Spans = std::map<uint32_t, Span>;

  static FreeIndex::node_type make_node();
  void set_free(Spans::iterator span) noexcept;
  void set_taken(Spans::iterator span) noexcept;
  void split(Spans::iterator span, uint32_t count);
  FreeIndex::const_iterator best_fit(uint32_t count, const Backing& backing, uint32_t longest,
                                     uint32_t& missing) const;
  uint32_t take_first(Spans::iterator span, uint32_t count);
  void count_taken(uint32_t count);

  uint32_t begin_;
  uint32_t end_;
  uint32_t taken_ = 0;
  uint32_t peak_taken_ = 0;
  Spans spans_;
  FreeIndex free_;
};

}  // namespace penstock
