#include "penstock/workers/remote_worker.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <new>
#include <utility>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/memory/region_layout.h"

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
  if (region_ != nullptr) head.mapped_bytes = region_->reserve();
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
  uint64_t packet_bytes = result.tree_bytes;
  if (result.tail_bytes != 0) packet_bytes = (packet_bytes + 63) / 64 * 64;
  const bool overflows = __builtin_add_overflow(packet_bytes, result.tail_bytes, &packet_bytes);
  uint64_t body_bytes = result.packet.bytes == 0 ? packet_bytes : 0;
  if (overflows ||
      __builtin_add_overflow(body_bytes, result.batch.bytes == 0 ? result.batch_bytes : 0,
                             &body_bytes) ||
      body_bytes != message->body_bytes || result.result > ResultKind::kBroken) {
    throw ConnectionEnded("a result that does not add up");
  }
  // Both leases are taken first: whatever fails then, they are returned.
  const Lease batch = leased(result.batch, result.batch_bytes);
  const Lease packet = leased(result.packet, packet_bytes);
  if (message->descriptor) map(message->descriptor.get());
  WorkerCounters& counters = slot.counters();
  counters.samples.add_single_writer(result.samples);
  counters.bytes.add_single_writer(result.payload_bytes);
  counters.errors.add_single_writer(result.errors);
  ring_.consumer().retried.add(result.retried);
  if (result.batch_bytes != 0) take_batch(result, batch, head.subspan(sizeof(result)), slot);
  take_packet(result, packet, slot);
}

void RemoteWorker::map(int region) {
  const int seals = fcntl(region, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return;  // reading it could be SIGBUS
  try {
    region_ = Region::open(region);
  } catch (const Error&) {
    region_ = nullptr;
  }
}

Lease RemoteWorker::leased(const Ref& ref, uint64_t bytes) const {
  if (ref.bytes == 0) return {};
  const auto refuse = [] { return ConnectionEnded("a result in memory that does not add up"); };
  if (region_ == nullptr || ref.bytes != bytes) throw refuse();
  // The region's headers are memory that another process writes. The size of its file is not.
  struct stat file {};
  if (fstat(region_->fd(), &file) != 0) throw refuse();
  const auto end = static_cast<uint64_t>(file.st_size);
  if (ref.offset > end - sizeof(BlockHeader)) throw refuse();
  Lease lease = on_connection([&] { return Lease(region_, ref); });
  const uint64_t begin = region_->offset_of(lease.data());
  if (begin > end || bytes > end - begin) throw refuse();
  region_->prefault(begin, bytes);
  return lease;
}

// Straight into the batch's memory.
void RemoteWorker::take_batch(const RemoteResult& result, const Lease& shared,
                              std::span<const std::byte> layout, Slot& slot) {
  std::byte* base = slot.memory(layout, result.batch_bytes, result.layout_row);
  if (base == nullptr) {
    throw Error(Code::kInternal, kOperation, "two runs of a ticket gave batches of two layouts");
  }
  Slot::Write ours(slot);
  if (!ours) throw Error(Code::kClosed, kOperation, "the ticket was taken away");
  if (shared) {
    copy_stream(base, shared.data(), result.batch_bytes);
  } else {
    on_connection([&] { connection_->receive_body({base, result.batch_bytes}); });
  }
}

void RemoteWorker::take_packet(const RemoteResult& result, const Lease& shared, Slot& slot) {
  auto spill = std::make_unique<Spill>();
  if (shared) {
    spill->size = shared.bytes();
    spill->bytes = {shared.owner(), shared.data()};
    slot.finish_spill(result.result, result.payload_bytes, std::move(spill));
    return;
  }
  const uint64_t bytes = connection_->body_left();
  if (bytes <= Slot::kInline) {
    std::array<std::byte, Slot::kInline> packet;
    const std::span<std::byte> into(packet.data(), bytes);
    if (bytes != 0) on_connection([&] { connection_->receive_body(into); });
    slot.finish_inline(result.result, result.payload_bytes, into);
    return;
  }
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
