#include "penstock/memory/page_heap.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "penstock/base/clock.h"

namespace penstock {

SpanMap::FreeIndex::node_type SpanMap::make_node() {
  FreeIndex one;
  one.emplace(0, 0);
  return one.extract(one.begin());
}

void SpanMap::set_free(Spans::iterator span) noexcept {
  span->second.free = true;
  span->second.node.value() = {span->second.count, span->first};
  free_.insert(std::move(span->second.node));
}

void SpanMap::set_taken(Spans::iterator span) noexcept {
  span->second.free = false;
  span->second.node = free_.extract({span->second.count, span->first});
}

// Splits an allocated span after `count` units; both parts stay allocated.
void SpanMap::split(Spans::iterator span, uint32_t count) {
  FreeIndex::node_type node = make_node();
  spans_.emplace_hint(std::next(span), span->first + count,
                      Span{span->second.count - count, false, std::move(node)});
  span->second.count = count;
}

void SpanMap::count_taken(uint32_t count) {
  taken_ += count;
  peak_taken_ = std::max(peak_taken_, taken_);
}

// Allocates the first `count` units of a free span that is long enough.
uint32_t SpanMap::split_off_front(Spans::iterator span, uint32_t count) {
  set_taken(span);
  if (span->second.count > count) {
    try {
      split(span, count);
    } catch (...) {
      set_free(span);
      throw;
    }
    set_free(std::next(span));
  }
  count_taken(count);
  return span->first;
}

uint32_t SpanMap::allocate_from_tail(uint32_t count) {
  return split_off_front(std::prev(spans_.end()), count);
}

SpanMap::FreeIndex::const_iterator SpanMap::best_fit(uint32_t count, const Backing& backing,
                                                     uint32_t longest, uint32_t& missing) const {
  constexpr int kTries = 16;  // spans to try for one without page faults
  auto best = free_.end();
  missing = count;
  int tries = 0;
  for (auto each = free_.lower_bound({count, 0});
       each != free_.end() && each->first <= longest && tries < kTries; ++each, ++tries) {
    const uint32_t lacks = backing.missing(each->second, count);
    if (best == free_.end() || lacks < missing) {
      best = each;
      missing = lacks;
    }
    if (lacks == 0) break;
  }
  return best;
}

std::optional<uint32_t> SpanMap::allocate(uint32_t count, const Backing& backing,
                                          uint32_t longest) {
  uint32_t missing = 0;
  const auto best = best_fit(count, backing, longest, missing);
  if (best == free_.end()) return std::nullopt;
  return split_off_front(spans_.find(best->second), count);
}

std::optional<uint32_t> SpanMap::missing(uint32_t count, const Backing& backing) const {
  uint32_t missing = 0;
  if (best_fit(count, backing, UINT32_MAX, missing) == free_.end()) return std::nullopt;
  return missing;
}

Backing::Stretch SpanMap::release(uint32_t start) noexcept {
  auto span = spans_.find(start);
  taken_ -= span->second.count;
  auto after = std::next(span);
  if (after != spans_.end() && after->second.free) {
    free_.erase({after->second.count, after->first});
    span->second.count += after->second.count;
    spans_.erase(after);
  }
  if (span != spans_.begin()) {
    auto before = std::prev(span);
    if (before->second.free) {
      set_taken(before);
      before->second.count += span->second.count;
      spans_.erase(span);
      span = before;
    }
  }
  set_free(span);
  return {span->first, span->second.count};
}

void SpanMap::extend(uint32_t count) {
  FreeIndex::node_type node = make_node();
  auto span = spans_.emplace_hint(spans_.end(), end_, Span{count, false, std::move(node)});
  end_ += count;
  taken_ += count;
  release(span->first);
}

uint32_t SpanMap::tail() const {
  if (spans_.empty() || !spans_.rbegin()->second.free) return 0;
  return spans_.rbegin()->second.count;
}

bool SpanMap::grow(uint32_t start, uint32_t count) noexcept {
  auto span = spans_.find(start);
  uint32_t more = count - span->second.count;
  auto after = std::next(span);
  if (after == spans_.end() || !after->second.free || after->second.count < more) return false;
  uint32_t left = after->second.count - more;
  set_taken(after);
  if (left > 0) {
    // The free span starts later now: move its map node to the new key.
    auto node = spans_.extract(after);
    node.key() = start + count;
    node.mapped().count = left;
    set_free(spans_.insert(std::move(node)).position);
  } else {
    spans_.erase(after);
  }
  span->second.count = count;
  count_taken(more);
  return true;
}

void SpanMap::shrink(uint32_t start, uint32_t count) {
  auto span = spans_.find(start);
  if (span->second.count <= count) return;
  split(span, count);
  release(start + count);
}

bool SpanMap::is_free(uint32_t first, uint32_t count) const {
  auto after = spans_.upper_bound(first);
  if (after == spans_.begin()) return false;
  auto span = std::prev(after);
  return span->second.free && first + count <= span->first + span->second.count;
}

namespace {

constexpr uint32_t kSmallUnits = 16;      // 1 MiB
constexpr uint32_t kMinUnitsToTime = 64;  // faults of fewer units are not timed

size_t units_of(size_t bytes) { return bytes / PageHeap::kUnit; }

}  // namespace

PageHeap::PageHeap(std::shared_ptr<Region> region, const Limits& limits)
    : region_(std::move(region)),
      retain_units_(units_of(limits.retain)),
      max_units_(units_of(limits.max_bytes)),
      soft_units_(std::min(units_of(limits.soft_limit), max_units_)) {}

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
  // From the end backwards: the lowest units are reused first.
  spans_.visit_free([&](Backing::Stretch span) {
    uint32_t end = span.first + span.count;
    while (trimmed < count) {
      Backing::Stretch pages = backing_.last_present(span.first, end);
      if (pages.count == 0) break;
      uint32_t released = std::min(pages.count, count - trimmed);
      end = pages.first + pages.count - released;
      region_->discard(end * kUnit, released * kUnit);
      backing_.clear(end, released);
      trimmed += released;
    }
    return trimmed < count;
  });
  return trimmed;
}

// Trims free units until the units with pages, pending ones included, are within the soft limit.
// False: they are still beyond the limit.
bool PageHeap::within_limits() noexcept {
  const size_t held = size_t{backing_.total()} + pending_;
  if (held <= soft_units_) return true;
  trim(static_cast<uint32_t>(held - soft_units_));
  return size_t{backing_.total()} + pending_ <= max_units_;
}

void PageHeap::mark_backed(uint32_t first, uint32_t count) {
  faulted_ += backing_.missing(first, count);
  backing_.set(first, count);
  peak_backed_ = std::max(peak_backed_, backing_.total());
}

// Faults in pages for units that the caller has allocated. REQUIRED: pending_ includes the units
// without pages.
bool PageHeap::fault_in(Lock& lock, uint32_t first, uint32_t count) {
  uint32_t end = first + count;
  for (uint32_t at = first; at < end;) {
    Backing::Stretch bare = backing_.next(at, end, false);
    if (bare.count == 0) break;
    lock.unlock();
    const uint64_t begun = now_ns();
    bool backed = region_->populate(bare.first * kUnit, bare.count * kUnit);
    if (!backed) region_->discard(bare.first * kUnit, bare.count * kUnit);
    const auto spent = static_cast<double>(now_ns() - begun);
    lock.lock();
    if (backed && bare.count >= kMinUnitsToTime) record_fault_time(spent / bare.count);
    if (!backed) {
      pending_ -= backing_.missing(first, count);
      return false;
    }
    pending_ -= bare.count;
    mark_backed(bare.first, bare.count);
    at = bare.first + bare.count;
  }
  return true;
}

// The longest free span from which `count` units may be cut. A small allocation must not split a
// span of hundreds of megabytes that was just freed. But if no much longer span was ever allocated,
// a long span is several adjacent batches, and may be split.
uint32_t PageHeap::max_span_for(uint32_t count) const {
  const uint32_t limit = count < kSmallUnits ? 4 * kSmallUnits : count + count / 2;
  return limit < longest_ ? limit : UINT32_MAX;
}

// Best fit, but avoids free spans that are much too long: uses the region's end instead, since the
// region can grow. To spare long spans, the region grows at most an eighth beyond the peak.
std::optional<uint32_t> PageHeap::allocate_span(uint32_t count) {
  if (auto limit = spans_.allocate(count, backing_, max_span_for(count))) return limit;
  uint32_t tail = spans_.tail();
  uint32_t more = tail >= count ? 0 : std::max(count, kSmallUnits) - tail;
  size_t longest = size_t{spans_.peak_taken()} * 9 / 8;
  if (more == 0 || (spans_.end() - spans_.begin() + more <= longest && extend(more))) {
    return spans_.allocate_from_tail(count);
  }
  if (auto start = spans_.allocate(count, backing_)) return start;
  if (!extend(count - tail)) return std::nullopt;
  return spans_.allocate_from_tail(count);
}

std::optional<uint32_t> PageHeap::allocate(Lock& lock, uint32_t count) {
  longest_ = std::max(longest_, count);
  for (bool again = false;; again = true) {
    std::optional<uint32_t> start = allocate_span(count);
    if (!start) return std::nullopt;
    uint32_t missing = backing_.missing(*start, count);
    if (missing == 0) return start;
    pending_ += missing;
    bool within_budget = within_limits();
    if (within_budget && fault_in(lock, *start, count)) return start;
    if (!within_budget) pending_ -= missing;
    release(*start);
    // The machine has no memory left. Free spans here that are too small may provide it: trim them.
    if (!within_budget || again || trim(UINT32_MAX) == 0) return std::nullopt;
  }
}

// Keeps an estimate close to the minimum: on a busy machine longer times include other work, and a
// preempted thread measures nothing useful.
void PageHeap::record_fault_time(double unit_ns) {
  constexpr double kMaxUnitNs = 1e6 * kUnit / (1 << 20);  // a millisecond for 1 MiB
  unit_ns = std::min(unit_ns, kMaxUnitNs);
  fault_ns_ = fault_ns_ == 0 ? unit_ns : std::min(unit_ns, fault_ns_ * 1.25);
}

uint64_t PageHeap::fault_ns_of(uint32_t units) const {
  return static_cast<uint64_t>(fault_ns_ * units);
}

uint32_t PageHeap::missing(uint32_t count) const {
  if (const auto missing = spans_.missing(count, backing_)) return *missing;
  // It would be allocated at the end.
  const uint32_t tail = spans_.tail();
  return count - tail + backing_.missing(spans_.end() - tail, tail);
}

uint64_t PageHeap::fault_ns(uint32_t count) const { return fault_ns_of(missing(count)); }

void PageHeap::trim_to_retained() noexcept {
  size_t free_units = size_t{free_backed()} + idle_;
  if (free_units > retain_units_) trim(static_cast<uint32_t>(free_units - retain_units_));
}

void PageHeap::release(uint32_t start) noexcept {
  spans_.release(start);
  trim_to_retained();
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
  bool within_budget = within_limits();
  if (within_budget && fault_in(lock, first, count - before)) return true;
  if (!within_budget) pending_ -= missing;
  try {
    spans_.shrink(start, before);
  } catch (...) {  // no memory even for bookkeeping: the units stay allocated and pending
    pending_ += backing_.missing(first, count - before);
  }
  return false;
}

void PageHeap::shrink(uint32_t start, uint32_t count) {
  spans_.shrink(start, count);
  trim_to_retained();
}

}  // namespace penstock
