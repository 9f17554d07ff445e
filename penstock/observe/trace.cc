#include "penstock/observe/trace.h"

#include <algorithm>

namespace penstock {
namespace {

// The layout of an event's words:
//   time:   span 48 bits (78 hours) | active share of the span, 12 bits | kind 4 bits
//   place:  step 40 bits | epoch 24 bits
//   pieces: count 32 bits | granule 32 bits
constexpr int kSpanBits = 48;
constexpr int kShareBits = 12;
constexpr int kStepBits = 40;
constexpr uint64_t kSpanMask = (uint64_t{1} << kSpanBits) - 1;
constexpr uint64_t kShareMask = (uint64_t{1} << kShareBits) - 1;
constexpr uint64_t kStepMask = (uint64_t{1} << kStepBits) - 1;
static_assert(kTraceKinds <= 16);

constexpr uint64_t kSmallNs = 20'000;
constexpr uint64_t kSmallDoublings = 8;  // to 5.12 ms
constexpr uint64_t kLongestMerged = 64;  // times the small size, so that progress stays visible

uint64_t small_after(uint64_t events) {
  return kSmallNs << std::min<uint64_t>(events / TraceRing::kCapacity, kSmallDoublings);
}

uint64_t pack_time(TraceKind kind, uint64_t span_ns, uint64_t active_ns) {
  span_ns = std::min(span_ns, kSpanMask);
  // The division is on the merged path only.
  const uint64_t share = active_ns >= span_ns
                             ? kShareMask
                             : static_cast<uint64_t>(static_cast<double>(active_ns) /
                                                     static_cast<double>(span_ns) * kShareMask);
  return span_ns | (share << kSpanBits) | (uint64_t{static_cast<uint32_t>(kind)} << 60);
}

uint64_t pack_pieces(uint32_t count, uint32_t granule) {
  return uint64_t{count} | (uint64_t{granule} << 32);
}

bool may_merge(TraceKind kind) { return kind != TraceKind::kRestart && kind != TraceKind::kError; }

}  // namespace

std::string_view name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kUser:
      return "user code";
    case TraceKind::kWaitTicket:
      return "waiting for a ticket";
    case TraceKind::kWaitSlot:
      return "waiting for memory";
    case TraceKind::kConsumerWait:
      return "waiting for a batch";
    case TraceKind::kConsumerBusy:
      return "training step";
    case TraceKind::kDeviceCopy:
      return "copy to the device";
    case TraceKind::kDeviceWait:
      return "device waits for a copy";
    case TraceKind::kDeviceStep:
      return "step on the device";
    case TraceKind::kRestart:
      return "restart";
    case TraceKind::kError:
      return "error";
    case TraceKind::kNone:
    case TraceKind::kCount:
      break;
  }
  return "none";
}

TraceWriter::TraceWriter(TraceRing* ring) : ring_(ring) {
  if (ring_ == nullptr) {
    return;
  }
  next_ = ring_->begun.load(std::memory_order_acquire);
  small_ns_ = small_after(next_);
  if (ring_->done.load(std::memory_order_acquire) != next_) {
    // The last writer was killed inside an event: mark it unfinished, so readers leave it out.
    ring_->events[(next_ - 1) % TraceRing::kCapacity].time.store(0, std::memory_order_release);
    ring_->done.store(next_, std::memory_order_release);
  }
}

void TraceWriter::record(TraceKind kind, uint64_t begin_ns, uint64_t end_ns, uint64_t epoch,
                         uint64_t step, uint32_t granule) {
  if (ring_ == nullptr) {
    return;
  }
  end_ns = std::max(begin_ns, end_ns);
  Last& last = last_[static_cast<uint32_t>(kind)];
  const bool merge = last.small && end_ns - begin_ns < small_ns_ && begin_ns >= last.end_ns &&
                     begin_ns - last.end_ns < small_ns_ &&
                     end_ns - last.begin_ns < kLongestMerged * small_ns_ &&
                     last.index_plus_1 + TraceRing::kCapacity > next_;  // not overwritten yet
  if (!merge) {
    append(kind, begin_ns, end_ns, epoch, step, granule);
    return;
  }
  last.end_ns = end_ns;
  last.active_ns += end_ns - begin_ns;
  ++last.count;
  // A reader may see one of these two words newer than the other: off by one piece, but valid.
  TraceRing::Event& event = ring_->events[(last.index_plus_1 - 1) % TraceRing::kCapacity];
  event.time.store(pack_time(kind, end_ns - last.begin_ns, last.active_ns),
                   std::memory_order_release);
  event.pieces.store(pack_pieces(last.count, last.granule), std::memory_order_release);
}

void TraceWriter::append(TraceKind kind, uint64_t begin_ns, uint64_t end_ns, uint64_t epoch,
                         uint64_t step, uint32_t granule) {
  if (next_ != 0 && next_ % TraceRing::kCapacity == 0) {
    small_ns_ = small_after(next_);
  }
  const uint64_t index = next_++;
  ring_->begun.store(next_, std::memory_order_relaxed);  // released by the words that follow
  TraceRing::Event& event = ring_->events[index % TraceRing::kCapacity];
  event.begin_ns.store(begin_ns, std::memory_order_release);
  event.time.store(pack_time(kind, end_ns - begin_ns, end_ns - begin_ns),
                   std::memory_order_release);
  event.place.store((step & kStepMask) | (epoch << kStepBits), std::memory_order_release);
  event.pieces.store(pack_pieces(1, granule), std::memory_order_release);
  ring_->done.store(next_, std::memory_order_release);

  Last& last = last_[static_cast<uint32_t>(kind)];
  last.index_plus_1 = next_;
  last.begin_ns = begin_ns;
  last.end_ns = end_ns;
  last.active_ns = end_ns - begin_ns;
  last.count = 1;
  last.granule = granule;
  last.small = may_merge(kind) && end_ns - begin_ns < small_ns_;
}

std::vector<TraceEvent> events_of(const TraceRing& ring) {
  const uint64_t done = ring.done.load(std::memory_order_acquire);
  const uint64_t first = done > TraceRing::kCapacity ? done - TraceRing::kCapacity : 0;
  std::vector<TraceEvent> events;
  events.reserve(done - first);
  for (uint64_t i = first; i < done; ++i) {
    const TraceRing::Event& from = ring.events[i % TraceRing::kCapacity];
    TraceEvent event;
    event.begin_ns = from.begin_ns.load(std::memory_order_acquire);
    const uint64_t time = from.time.load(std::memory_order_acquire);
    const uint64_t place = from.place.load(std::memory_order_acquire);
    const uint64_t pieces = from.pieces.load(std::memory_order_acquire);
    event.span_ns = time & kSpanMask;
    const uint64_t share = (time >> kSpanBits) & kShareMask;
    event.active_ns = share == kShareMask
                          ? event.span_ns
                          : static_cast<uint64_t>(static_cast<double>(event.span_ns) *
                                                  static_cast<double>(share) / kShareMask);
    event.kind = static_cast<TraceKind>(time >> 60);
    event.step = place & kStepMask;
    event.epoch = static_cast<uint32_t>(place >> kStepBits);
    event.count = static_cast<uint32_t>(pieces);
    event.granule = static_cast<uint32_t>(pieces >> 32);
    events.push_back(event);
  }
  // Any word of a newer event that was read above makes this load see that event counted.
  const uint64_t begun = ring.begun.load(std::memory_order_relaxed);
  const uint64_t lapped = begun > first + TraceRing::kCapacity
                              ? std::min(begun - TraceRing::kCapacity - first, done - first)
                              : 0;
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(lapped));
  std::erase_if(events, [](const TraceEvent& event) {
    return event.kind == TraceKind::kNone || event.kind >= TraceKind::kCount;
  });
  std::stable_sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin_ns < b.begin_ns;
  });
  return events;
}

}  // namespace penstock
