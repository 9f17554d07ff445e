#include "penstock/workers/remote_worker.h"

#include <array>
#include <new>
#include <utility>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock {

namespace {

constexpr char kOperation[] = "remote worker";

// An error of the connection. Errors of the slot (no memory, closed) pass.
class ConnectionEnded : public std::exception {
 public:
  explicit ConnectionEnded(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

template <class Function>
decltype(auto) on_connection(const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw ConnectionEnded(error.what());
  }
}

}  // namespace

void RemoteWorker::run(const Ticket& ticket, Slot& slot) {
  try {
    // A connection that ended while this worker slept costs the ticket nothing.
    if (ended_.load() || !connection_->idle()) throw ConnectionEnded("the connection was closed");
    send(ticket, slot);
    receive(slot);
  } catch (const ConnectionEnded& end) {
    why_ = end.what();
    cut();
    if (!slot.finished()) slot.leave_to_supervisor();
  }
}

void RemoteWorker::send(const Ticket& ticket, Slot& slot) {
  RemoteTicket head;
  head.worker = slot.claim().worker;
  head.epoch = ticket.epoch;
  head.base = ticket.base;
  head.step = ticket.step;
  head.version = ticket.version;
  head.rows = ticket.rows;
  head.begin = ticket.begin;
  head.end = ticket.end;
  head.stream = ticket.stream;
  head.rows_together = ticket.rows_together ? 1 : 0;
  std::vector<RemotePoisoned> poisoned;
  if (slot.any_poisoned()) {
    const uint32_t count = slot.claim().task->poisoned.load(std::memory_order_acquire);
    for (const Poisoned& each : ring_.poisoned_of(slot.claim()).first(count)) {
      const uint64_t ending = each.ending.load(std::memory_order_relaxed);
      poisoned.push_back({each.call.load(std::memory_order_relaxed),
                          static_cast<uint32_t>(ending >> 8),
                          static_cast<uint32_t>(ending & 0xff)});
    }
  }
  head.poisoned = static_cast<uint32_t>(poisoned.size());
  std::span<const std::byte> input;
  if (const std::byte* of = slot.input()) input = {of, arena_.bytes_of(of)};
  const std::array<std::span<const std::byte>, 2> body{std::as_bytes(std::span(poisoned)), input};
  sent_ = true;  // also if this fails: the other host may have it, and the connection be cut since
  on_connection([&] { connection_->send(bytes_of_message(head), body); });
}

void RemoteWorker::receive(Slot& slot) {
  const auto message = on_connection([&] { return connection_->receive(kForEver); });
  if (!message) throw ConnectionEnded("the other host has ended the connection");
  sent_ = false;
  const std::span<const std::byte> head(message->head);
  const auto result = on_connection([&] { return message_in<RemoteResult>(head); });
  uint64_t bytes = result.tree_bytes;
  if (result.tail_bytes != 0) bytes = (bytes + 63) / 64 * 64;
  if (__builtin_add_overflow(bytes, result.batch_bytes, &bytes) ||
      __builtin_add_overflow(bytes, result.tail_bytes, &bytes) || bytes != message->body_bytes ||
      result.result > ResultKind::kBroken) {
    throw ConnectionEnded("a result that does not add up");
  }
  take_result(result, head.subspan(sizeof(result)), slot);
}

void RemoteWorker::take_result(const RemoteResult& result, std::span<const std::byte> layout,
                               Slot& slot) {
  WorkerCounters& counters = slot.counters();
  counters.samples.add_single_writer(result.samples);
  counters.bytes.add_single_writer(result.payload_bytes);
  counters.errors.add_single_writer(result.errors);
  ring_.consumer().retried.add(result.retried);
  if (result.batch_bytes != 0) take_batch(result, layout, slot);
  take_packet(result, slot);
}

// Straight into the batch's memory.
void RemoteWorker::take_batch(const RemoteResult& result, std::span<const std::byte> layout,
                              Slot& slot) {
  std::byte* base = slot.memory(layout, result.batch_bytes, result.layout_row);
  if (base == nullptr) {
    throw Error(Code::kInternal, kOperation, "two runs of a ticket gave batches of two layouts");
  }
  Slot::Write ours(slot);
  if (!ours) throw Error(Code::kClosed, kOperation, "the ticket was taken away");
  on_connection([&] { connection_->receive_body({base, result.batch_bytes}); });
}

void RemoteWorker::take_packet(const RemoteResult& result, Slot& slot) {
  const uint64_t bytes = connection_->body_left();
  if (bytes <= Slot::kInline) {
    std::array<std::byte, Slot::kInline> packet;
    const std::span<std::byte> into(packet.data(), bytes);
    if (bytes != 0) on_connection([&] { connection_->receive_body(into); });
    slot.finish_inline(result.result, result.payload_bytes, into);
    return;
  }
  auto spill = std::make_unique<Spill>();
  spill->size = bytes;
  spill->bytes = space_for(bytes);
  on_connection([&] { connection_->receive_body({spill->bytes.get(), bytes}); });
  slot.finish_spill(result.result, result.payload_bytes, std::move(spill));
}

// Of the batches' arena, whose pages are faulted in already; or ordinary memory.
std::shared_ptr<std::byte[]> RemoteWorker::space_for(uint64_t bytes) {
  if (void* block = arena_.allocate(bytes)) {
    const Lease lease = arena_.lease(block);
    arena_.release(block);
    if (lease) return {lease.owner(), lease.data()};
  }
  return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
}

}  // namespace penstock
