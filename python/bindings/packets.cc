#include "packets.h"

#include <cstring>
#include <vector>

#include "penstock/workers/link.h"

namespace penstock::python {

void Packets::send(Slot& slot, ResultKind kind, uint64_t bytes) {
  auto tree = encoder_.tree();
  bytes += encoder_.payload_bytes();
  slot.counters().bytes.add_single_writer(bytes);
  if (!encoder_.has_tail()) {
    if (tree.size() <= Slot::kInline) {
      slot.finish_inline(kind, bytes, tree);
      return;
    }
    void* block = arena_ == nullptr ? nullptr : arena_->allocate(tree.size());
    if (block != nullptr) {
      std::memcpy(block, tree.data(), tree.size());
      auto ref = arena_->share(block);
      arena_->release(block);
      if (ref) {
        slot.finish_block(kind, bytes, {ref->offset, ref->bytes, ref->generation, number_},
                          static_cast<uint32_t>(tree.size()));
        return;
      }
    }
  }
  if (arena_ == nullptr) {
    packet_ = {tree, encoder_.tail_parts()};
    slot.finish_object(kind, bytes, &packet_);
    return;
  }
  // No space in the arena: the consumer's supervisor reads the bytes into ordinary memory and
  // finishes the ticket.
  std::vector<std::byte> whole(encoder_.tail_offset() + encoder_.tail_bytes());
  std::memcpy(whole.data(), tree.data(), tree.size());
  encoder_.write_tail(whole.data() + encoder_.tail_offset());
  uint64_t task = ring_.number_of(slot.claim());
  PyThreadState* released = PyEval_SaveThread();
  link_send(link_, {LinkMessage::kPayload, static_cast<uint32_t>(kind), task, whole.size()}, whole);
  PyEval_RestoreThread(released);
  slot.leave_to_supervisor();
}

}  // namespace penstock::python
