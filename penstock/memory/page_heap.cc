#include "penstock/memory/page_heap.h"

#include <algorithm>
#include <utility>

#include "penstock/base/clock.h"

namespace penstock {
namespace {

constexpr uint32_t kSmall = 16;    // units: 1 MiB
constexpr uint32_t kTelling = 64;  // units whose time is that of their pages

size_t units_of(size_t bytes) { return bytes / PageHeap::kUnit; }

}  // namespace

PageHeap::PageHeap(std::shared_ptr<Region> region, size_t retain_bytes, size_t max_bytes)
    : region_(std::move(region)),
      retain_units_(units_of(retain_bytes)),
      max_units_(units_of(max_bytes)) {}

// Adds units to the end, without pages.
bool PageHeap::extend(uint32_t count) {
  size_t end = size_t{spans_.end()} + count;
  if (end > region_->reserve() / kUnit) return false;
  backing_.resize(static_cast<uint32_t>(end));
  if (!region_->extend(end * kUnit)) return false;
  spans_.extend(count);
  return true;
}

uint32_t PageHeap::trim(uint32_t count) noexcept {
  uint32_t trimmed = 0;
  // From the end backwards: the lowest is what is reused first.
  spans_.visit_free([&](Backing::Stretch span) {
    uint32_t end = span.first + span.count;
    while (trimmed < count) {
      Backing::Stretch pages = backing_.last_present(span.first, end);
      if (pages.count == 0) break;
      uint32_t give = std::min(pages.count, count - trimmed);
      end = pages.first + pages.count - give;
      region_->give_back(end * kUnit, give * kUnit);
      backing_.clear(end, give);
      trimmed += give;
    }
    return trimmed < count;
  });
  return trimmed;
}

// Whether `count` more units may have pages, once free ones elsewhere gave theirs up.
bool PageHeap::make_room(uint32_t count) noexcept {
  size_t held = size_t{backing_.total()} + pending_;
  if (held + count <= max_units_) return true;
  size_t excess = held + count - max_units_;
  if (excess > free_backed()) return false;
  trim(static_cast<uint32_t>(excess));
  return size_t{backing_.total()} + pending_ + count <= max_units_;
}

void PageHeap::note_backed(uint32_t first, uint32_t count) {
  faulted_ += backing_.missing(first, count);
  backing_.set(first, count);
  peak_backed_ = std::max(peak_backed_, backing_.total());
}

// Pages for units that the caller has taken; what lacks pages is counted in pending_ already.
bool PageHeap::fault_in(Lock& lock, uint32_t first, uint32_t count) {
  uint32_t end = first + count;
  for (uint32_t at = first; at < end;) {
    Backing::Stretch bare = backing_.next(at, end, false);
    if (bare.count == 0) break;
    lock.unlock();
    const uint64_t begun = now_ns();
    bool backed = region_->back(bare.first * kUnit, bare.count * kUnit);
    if (!backed) region_->give_back(bare.first * kUnit, bare.count * kUnit);
    const auto spent = static_cast<double>(now_ns() - begun);
    lock.lock();
    if (backed && bare.count >= kTelling) saw_fault(spent / bare.count);
    if (!backed) {
      pending_ -= backing_.missing(first, count);
      return false;
    }
    pending_ -= bare.count;
    note_backed(bare.first, bare.count);
    at = bare.first + bare.count;
  }
  return true;
}

// How long a free span may be for one of `count` units to be cut from it without further thought.
// A few kilobytes must not cost hundreds of megabytes that just came back their place. But where
// nothing much longer was ever taken, a long span is several batches that lay side by side, and is
// there for the next one.
uint32_t PageHeap::snug_for(uint32_t count) const {
  const uint32_t snug = count < kSmall ? 4 * kSmall : count + count / 2;
  return snug < longest_ ? snug : UINT32_MAX;
}

// Best fit, but for a free span that is much too long: rather than that, one at the region's end is
// used, since the end can move. To spare the long ones the region grows to at most an eighth more
// than was ever taken, so this has an end too.
std::optional<uint32_t> PageHeap::take_span(uint32_t count) {
  if (auto snug = spans_.take(count, backing_, snug_for(count))) return snug;
  uint32_t tail = spans_.tail();
  uint32_t more = tail >= count ? 0 : std::max(count, kSmall) - tail;
  size_t longest = size_t{spans_.peak_taken()} * 9 / 8;
  if (more == 0 || (spans_.end() - spans_.begin() + more <= longest && extend(more))) {
    return spans_.take_from_tail(count);
  }
  if (auto start = spans_.take(count, backing_)) return start;
  if (!extend(count - tail)) return std::nullopt;
  return spans_.take_from_tail(count);
}

std::optional<uint32_t> PageHeap::take(Lock& lock, uint32_t count) {
  longest_ = std::max(longest_, count);
  for (bool again = false;; again = true) {
    std::optional<uint32_t> start = take_span(count);
    if (!start) return std::nullopt;
    uint32_t missing = backing_.missing(*start, count);
    if (missing == 0) return start;
    pending_ += missing;
    bool room = make_room(0);
    if (room && fault_in(lock, *start, count)) return start;
    if (!room) pending_ -= missing;
    give(*start);
    // The machine is full: what is free here, in pieces too small for this, may be what is missing.
    if (!room || again || trim(UINT32_MAX) == 0) return std::nullopt;
  }
}

// Of what a machine that is busy takes for it the least is the pages' own. Who was stopped
// meanwhile saw nothing of the kind.
void PageHeap::saw_fault(double unit_ns) {
  constexpr double kMostNs = 1e6 * kUnit / (1 << 20);  // a millisecond for 1 MiB
  unit_ns = std::min(unit_ns, kMostNs);
  fault_ns_ = fault_ns_ == 0 ? unit_ns : std::min(unit_ns, fault_ns_ * 1.25);
}

uint64_t PageHeap::fault_ns_of(uint32_t units) const {
  return static_cast<uint64_t>(fault_ns_ * units);
}

uint64_t PageHeap::fault_ns(uint32_t count) const {
  std::optional<uint32_t> missing = spans_.missing(count, backing_);
  if (!missing) {  // at the end
    const uint32_t tail = spans_.tail();
    missing = count - tail + backing_.missing(spans_.end() - tail, tail);
  }
  return fault_ns_of(*missing);
}

void PageHeap::keep_to_retained() noexcept {
  size_t free_units = size_t{free_backed()} + idle_;
  if (free_units > retain_units_) trim(static_cast<uint32_t>(free_units - retain_units_));
}

void PageHeap::give(uint32_t start) noexcept {
  spans_.give(start);
  keep_to_retained();
}

bool PageHeap::grow(Lock& lock, uint32_t start, uint32_t count) {
  uint32_t before = spans_.length(start);
  if (!spans_.grow(start, count)) {
    uint32_t more = count - before;
    if (start + before + spans_.tail() != spans_.end()) return false;
    if (!extend(more - spans_.tail()) || !spans_.grow(start, count)) return false;
  }
  uint32_t first = start + before;
  uint32_t missing = backing_.missing(first, count - before);
  if (missing == 0) return true;
  pending_ += missing;
  bool room = make_room(0);
  if (room && fault_in(lock, first, count - before)) return true;
  if (!room) pending_ -= missing;
  try {
    spans_.shrink(start, before);
  } catch (...) {  // not a hundred bytes left: the units stay taken, and counted as on their way
    pending_ += backing_.missing(first, count - before);
  }
  return false;
}

void PageHeap::shrink(uint32_t start, uint32_t count) {
  spans_.shrink(start, count);
  keep_to_retained();
}

}  // namespace penstock
