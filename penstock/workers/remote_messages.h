#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "penstock/base/error.h"
#include "penstock/memory/region.h"
#include "penstock/workers/ticket_ring_layout.h"

// The messages between a RemoteWorker, in the consumer's process, and the RemoteService of a
// process on another host, as penstock/net carries them: a head and a body. Both ends run the same
// version of penstock, which their server checks before (python/penstock/remote/messages.py), on
// machines of one byte order.
namespace penstock {

enum class RemoteKind : uint32_t { kTicket = 1, kResult = 2 };

// A call that must not be tried again, as RingSupervisor::poison takes it.
struct RemotePoisoned {
  uint64_t call = 0;
  uint32_t worker = 0;
  uint32_t kind = 0;
};

// To the service: the head of a ticket. The body: RemotePoisoned, as often as `poisoned` says; the
// ticket's input.
struct RemoteTicket {
  static constexpr RemoteKind kKind = RemoteKind::kTicket;
  RemoteKind kind = kKind;
  uint32_t worker = 0;  // its place in the consumer's ring, which errors name
  uint64_t epoch = 0, base = 0, step = 0, version = 0;
  uint32_t rows = 0, begin = 0, end = 0, stream = 0;
  uint32_t rows_together = 0;
  uint32_t poisoned = 0;
  uint64_t mapped_bytes = 0;  // of the service's region, in the consumer's process; 0: none
};

// From the service: the result, as the head. The layout of the batch follows in the head. The body:
// the batch; the packet: its tree, zeros up to a multiple of 64 if there is a tail, its tail.
//
// On one host the first result has the descriptor of the service's region. If the consumer's
// process has mapped it, large batches and packets of later results lie there instead of in the
// body, each with one lease for the consumer.
struct RemoteResult {
  static constexpr RemoteKind kKind = RemoteKind::kResult;
  RemoteKind kind = kKind;
  ResultKind result = ResultKind::kNone;
  uint64_t payload_bytes = 0;  // Task::bytes
  uint64_t batch_bytes = 0;    // 0: there is no batch
  uint64_t tree_bytes = 0, tail_bytes = 0;
  uint32_t layout_row = 0;  // BatchEntry::layout_row
  uint32_t reserved = 0;
  uint64_t samples = 0, errors = 0, retried = 0, busy_ns = 0;  // counted for this ticket
  Ref batch, packet;  // where they lie in the region; no bytes: in the body

  // Batches and packets of fewer bytes are sent in the body: that costs less than a lease.
  static constexpr uint64_t kLeastShared = 32 << 10;
};

// The ticket that a worker's process runs, in a file in memory that the process shares with its
// server. If the process dies, the server reports the ticket and its call to the ticket's consumer.
struct RemoteStatus {
  // The consumer's number among those of the process, in the upper half. In the lower half: the
  // ticket's place in that consumer's ring, + 1. 0: no ticket is run.
  std::atomic<uint64_t> running;
  std::atomic<uint64_t> call;  // Call::word

  static uint64_t running_word(uint32_t consumer, uint32_t place) {
    return uint64_t{consumer} << 32 | (uint64_t{place} + 1);
  }
};
static_assert(sizeof(RemoteStatus) == 16);

template <class Message>
std::span<const std::byte> bytes_of_message(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return std::as_bytes(std::span(&message, 1));
}

// Error kDataLoss: the head is not of that message.
template <class Message>
Message message_in(std::span<const std::byte> head) {
  Message message;
  if (head.size() >= sizeof(message)) {
    std::memcpy(&message, head.data(), sizeof(message));
    if (message.kind == Message::kKind) return message;
  }
  throw Error(Code::kDataLoss, "remote worker", "a message that does not add up");
}

}  // namespace penstock
