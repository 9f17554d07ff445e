#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "penstock/memory/backing.h"
#include "penstock/memory/region.h"
#include "penstock/memory/span_map.h"

namespace penstock {

// Stretches of a region whose pages are there, in units of 64 KiB: joins what is free (SpanMap)
// with what has pages (Backing) and grows the region, within the bounds given.
//
// Every member is called with `lock` (or the lock it was taken from) held. Those that take `lock`
// let go of it while pages are faulted in; the units concerned are theirs meanwhile.
class PageHeap {
 public:
  static constexpr size_t kUnit = Region::kFirstBlock;
  using Lock = std::unique_lock<std::mutex>;

  PageHeap(std::shared_ptr<Region> region, size_t retain_bytes, size_t max_bytes);

  Region& region() const { return *region_; }
  uint32_t end() const { return spans_.end(); }  // units of the region so far

  // The first of `count` units with pages; nullopt where there is no room. May throw std::bad_alloc
  // (nothing changed).
  std::optional<uint32_t> take(Lock& lock, uint32_t count);
  // About how many nanoseconds take() would spend on faulting pages in, as long as that took
  // before; 0 where none ever were.
  uint64_t fault_ns(uint32_t count) const;
  uint64_t fault_ns_of(uint32_t units) const;  // of so many
  // Gives back the span that starts there; pages beyond `retain_bytes` go back to the system.
  void give(uint32_t start) noexcept;
  uint32_t length(uint32_t start) const { return spans_.length(start); }

  // Makes a taken span longer in place, if it can be. May throw std::bad_alloc.
  bool grow(Lock& lock, uint32_t start, uint32_t count);
  void shrink(uint32_t start, uint32_t count);

  // Taken units that the caller keeps unused, for it to be quick: they count as retained. Whether
  // another `count` of them may be kept.
  bool may_idle(uint32_t count) const {
    return size_t{free_backed()} + idle_ + count <= retain_units_;
  }
  void add_idle(uint32_t count) { idle_ += count; }
  void remove_idle(uint32_t count) { idle_ -= count; }

  // Gives pages of free units back to the system, at least `count` of them if there are as many.
  uint32_t trim(uint32_t count) noexcept;

  uint32_t backed() const { return backing_.total(); }  // units with pages
  uint32_t free_backed() const { return backing_.total() + pending_ - spans_.taken(); }
  uint32_t peak_backed() const { return peak_backed_; }
  uint64_t faulted() const { return faulted_; }  // units, ever

 private:
  bool extend(uint32_t count);
  uint32_t snug_for(uint32_t count) const;
  std::optional<uint32_t> take_span(uint32_t count);
  bool make_room(uint32_t count) noexcept;
  bool fault_in(Lock& lock, uint32_t first, uint32_t count);
  void saw_fault(double unit_ns);
  void note_backed(uint32_t first, uint32_t count);
  void keep_to_retained() noexcept;

  std::shared_ptr<Region> region_;
  const size_t retain_units_;
  const size_t max_units_;
  SpanMap spans_{1};  // unit 0 is the region's header
  Backing backing_;
  uint32_t longest_ = 0;  // span that was ever asked for
  uint32_t idle_ = 0;
  uint32_t pending_ = 0;  // units taken whose pages are still being faulted in
  uint32_t peak_backed_ = 0;
  uint64_t faulted_ = 0;
  double fault_ns_ = 0;  // of one unit
};

}  // namespace penstock
