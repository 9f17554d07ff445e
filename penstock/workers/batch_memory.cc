#include "penstock/workers/batch_memory.h"

#include "penstock/memory/allocator.h"

namespace penstock {

bool serve_space_requests(TicketRing& ring, Allocator& arena) {
  bool all = true;
  uint64_t head = ring.head();
  for (uint64_t seq = head, end = ring.posted(); seq < end; ++seq) {
    BatchEntry& entry = ring.entry_at(seq);
    // Several threads may be here at once: the thread that takes the entry out of kProposed serves
    // it. The consumer waits for that before it reuses the entry (see RingConsumer::close_layout).
    uint32_t proposed = ring.layout_word(seq, LayoutState::kProposed);
    if (!entry.layout_state.compare_exchange_strong(
            proposed, ring.layout_word(seq, LayoutState::kProposing, BatchEntry::kServer))) {
      continue;
    }
    if (entry.block_bytes != 0) {
      arena.release(arena.region()->base() + entry.block_offset);
      entry.block_bytes = 0;
    }
    if (void* space = arena.allocate(entry.needed_bytes)) {
      entry.block_offset = arena.region()->offset_of(space);
      entry.block_bytes = entry.needed_bytes;
      ring.set_layout_state(seq, LayoutState::kReady);
    } else if (seq == ring.head() || ring.number() != 0) {
      // Further lanes fail immediately: the batches that use the memory may wait for these workers.
      ring.set_layout_state(seq, LayoutState::kNoSpace);
    } else {
      ring.set_layout_state(seq, LayoutState::kProposed);
      all = false;
    }
  }
  return all;
}

std::byte* LocalMemory::at(uint64_t offset) { return arena_.region()->base() + offset; }

}  // namespace penstock
