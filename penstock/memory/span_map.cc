#include "penstock/memory/span_map.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

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

}  // namespace penstock
