#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "penstock/memory/region.h"
#include "penstock/memory/span_map.h"

namespace penstock {

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
