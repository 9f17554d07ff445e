#include "penstock/workers/remote_service.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/memory/region_layout.h"
#include "penstock/workers/ring_supervisor.h"
#include "penstock/workers/ring_worker.h"

namespace penstock {

namespace {

constexpr std::array<std::byte, 64> kZeros{};

// Takes and gives back the runner's lock on the user's code (TicketRunner::before_wait).
class Awake {
 public:
  explicit Awake(TicketRunner& runner) : runner_(runner) { runner_.after_wait(); }
  ~Awake() { runner_.before_wait(); }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;

 private:
  TicketRunner& runner_;
};

// A ticket's turn, noted in the status while it lasts.
class Running {
 public:
  Running(RemoteTurn& turn, uint32_t consumer, uint32_t place)
      : lock_(turn.mutex()), status_(turn.status()) {
    status_.call.store(0, std::memory_order_relaxed);
    status_.running.store(RemoteStatus::running_word(consumer, place), std::memory_order_release);
  }
  ~Running() { status_.running.store(0, std::memory_order_release); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  const Slot::CallListener& listener() const { return listener_; }

 private:
  std::lock_guard<std::mutex> lock_;
  RemoteStatus& status_;
  const Slot::CallListener listener_ = [this](const Call& call) {
    status_.call.store(call.word(), std::memory_order_relaxed);
  };
};

[[noreturn]] void refuse(const char* why) { throw Error(Code::kDataLoss, "remote worker", why); }

}  // namespace

RemoteTurn::RemoteTurn(int status) {
  void* at = mmap(nullptr, sizeof(RemoteStatus), PROT_READ | PROT_WRITE, MAP_SHARED, status, 0);
  if (at == MAP_FAILED) throw Error::from_errno(errno, "remote worker", "map its status");
  status_ = static_cast<RemoteStatus*>(at);
}

RemoteTurn::~RemoteTurn() { munmap(status_, sizeof(RemoteStatus)); }

RemoteService::RemoteService(std::unique_ptr<net::Connection> connection, const Shape& shape,
                             RemoteTurn& turn)
    : connection_(std::move(connection)),
      ring_(TicketRing::create(
          {.entries = 1, .granules = 1, .workers = shape.workers, .rows = shape.rows}, false)),
      arena_(Region::create(connection_->local() ? Region::Kind::kShared : Region::Kind::kPrivate)),
      memory_(arena_),
      consumer_(*ring_),
      turn_(turn),
      rows_(shape.rows),
      number_(shape.consumer) {}

RemoteService::~RemoteService() = default;

void RemoteService::serve(TicketRunner& runner) {
  runner.before_wait();
  struct Returned {  // the caller expects the lock that it had
    TicketRunner& runner;
    ~Returned() { runner.after_wait(); }
  } returned{runner};
  std::vector<std::byte> body;
  for (;;) {
    std::optional<net::Received> message;
    try {
      message = connection_->receive(kForEver);
      if (!message) return;
      receive_body(message->body_bytes, body);
    } catch (const Error& error) {
      if (error.code() == Code::kClosed || error.code() == Code::kTimeout) return;
      throw;
    }
    const auto ticket = message_in<RemoteTicket>(message->head);
    try {
      run(ticket, body, runner);
    } catch (const Error& error) {
      if (error.code() == Code::kClosed || error.code() == Code::kTimeout) return;
      throw;
    }
  }
}

// In pieces: memory grows with the bytes that have arrived, and not with those that are announced.
void RemoteService::receive_body(uint64_t bytes, std::vector<std::byte>& into) {
  into.clear();
  while (into.size() < bytes) {
    const size_t at = into.size();
    into.resize(at + std::min<uint64_t>(bytes - at, kPieceBytes));
    connection_->receive_body(std::span(into).subspan(at));
  }
}

void RemoteService::run(const RemoteTicket& ticket, std::span<const std::byte> body,
                        TicketRunner& runner) {
  const uint64_t listed = uint64_t{ticket.poisoned} * sizeof(RemotePoisoned);
  if (ticket.worker >= ring_->workers()) refuse("a ticket for a place that does not exist");
  if (ticket.rows > rows_ || ticket.begin != 0 || ticket.end != ticket.rows) {
    refuse("a ticket for rows that a batch does not have");
  }
  if (listed > body.size()) refuse("a ticket that is shorter than its lists");
  const uint64_t seq = ring_->posted();
  post(ticket, body.subspan(listed));
  RemoteResult result;
  TicketRing::Claim claim;
  {
    const Running running(turn_, number_, ticket.worker);
    const uint64_t begin = now_ns();
    if (!RingWorker(*ring_, ticket.worker).claim_of(seq, claim)) {
      throw Error(Code::kInternal, "remote worker", "a ticket that was posted is not open");
    }
    for (uint32_t i = 0; i < ticket.poisoned; ++i) {
      RemotePoisoned each;
      std::memcpy(&each, body.data() + i * sizeof(each), sizeof(each));
      TicketRing::Claim lost = claim;
      lost.worker = each.worker;
      RingSupervisor(*ring_).poison(lost, Call::of(each.call), static_cast<ResultKind>(each.kind));
    }
    WorkerCounters& counters = ring_->place(ticket.worker).counters;
    const uint64_t samples = counters.samples.get(), errors = counters.errors.get();
    const uint64_t retried = ring_->consumer().retried.get();
    Slot slot(*ring_, claim, &memory_, runner);
    slot.read_ticket();
    slot.tell(running.listener());
    const Awake awake(runner);
    runner.catch_up();
    run_slot(runner, slot);
    result.samples = counters.samples.get() - samples;
    result.errors = counters.errors.get() - errors;
    result.retried = ring_->consumer().retried.get() - retried;
    result.busy_ns = now_ns() - begin;
  }
  send_result(*claim.entry, *claim.task, result, ticket.mapped_bytes);
  clear(seq);
}

void RemoteService::post(const RemoteTicket& ticket, std::span<const std::byte> input) {
  BatchEntry& entry = consumer_.next_entry();
  entry.epoch = ticket.epoch;
  entry.base = ticket.base;
  entry.step = ticket.step;
  entry.version = ticket.version;
  entry.rows = ticket.rows;
  entry.stream = ticket.stream;
  entry.rows_together = ticket.rows_together != 0;
  entry.granules.store(1, std::memory_order_relaxed);
  entry.owner.store(kAnyWorker, std::memory_order_relaxed);
  entry.input_offset = 0;
  if (!input.empty()) {
    void* space = arena_.allocate(input.size());
    if (space == nullptr) throw Error(Code::kOutOfMemory, "remote worker", "no space for a ticket");
    std::memcpy(space, input.data(), input.size());
    entry.input_offset = arena_.region()->offset_of(space);
  }
  consumer_.publish(entry);
}

// One lease for the consumer; a Ref without bytes if the consumer cannot reach the block.
Ref RemoteService::share(void* block, uint64_t mapped) {
  const std::optional<Ref> ref = arena_.share(block);
  if (!ref) return {};
  Region& region = *arena_.region();
  const BlockHeader& header = *region.header_at(ref->offset);
  if (ref->offset + sizeof(header) <= mapped && header.data + header.bytes <= mapped) return *ref;
  region.return_lease(*ref);
  return {};
}

Ref RemoteService::share_copy(std::span<const std::span<const std::byte>> parts, uint64_t bytes,
                              uint64_t mapped) {
  void* const block = arena_.allocate(bytes);
  if (block == nullptr) return {};
  const Ref ref = share(block, mapped);
  auto* to = static_cast<std::byte*>(block);
  for (const auto part : parts) {
    if (ref.bytes == 0) break;
    copy_stream(to, part.data(), part.size());
    to += part.size();
  }
  arena_.release(block);
  return ref;
}

// What does not lie in the shared region is sent from where it lies.
void RemoteService::send_result(const BatchEntry& entry, const Task& task, RemoteResult result,
                                uint64_t mapped) {
  if (!connection_->local()) mapped = 0;
  result.result = task.kind;
  result.payload_bytes = task.bytes;
  std::vector<std::span<const std::byte>> body;
  std::vector<std::byte> head;
  std::span<const std::byte> layout;
  const auto state = BatchEntry::layout_state_of(entry.layout_state.load());
  if (task.kind == ResultKind::kRows && state == LayoutState::kReady) {
    layout = {entry.layout, entry.layout_length};
    result.layout_row = entry.layout_row;
    result.batch_bytes = entry.needed_bytes;
    std::byte* const batch = memory_.at(entry.block_offset);
    if (result.batch_bytes >= RemoteResult::kLeastShared && mapped != 0) {
      result.batch = share(batch, mapped);
    }
    if (result.batch.bytes == 0) body.push_back({batch, entry.needed_bytes});
  }
  const size_t before = body.size();
  if (task.object != 0) {
    const auto& packet = *reinterpret_cast<const RemotePacket*>(task.object);
    result.tree_bytes = packet.tree.size();
    body.push_back(packet.tree);
    if (!packet.tail.empty()) {
      body.push_back(std::span(kZeros).first((64 - packet.tree.size() % 64) % 64));
    }
    for (const auto part : packet.tail) {
      result.tail_bytes += part.size();
      body.push_back(part);
    }
  } else if (task.length != 0) {
    result.tree_bytes = task.length;
    body.push_back({task.packet, task.length});
  }
  const std::span packet = std::span(body).subspan(before);
  uint64_t packet_bytes = 0;
  for (const auto part : packet) packet_bytes += part.size();
  if (packet_bytes >= RemoteResult::kLeastShared && mapped != 0) {
    result.packet = share_copy(packet, packet_bytes, mapped);
    if (result.packet.bytes != 0) body.resize(before);
  }
  const auto fixed = bytes_of_message(result);
  head.assign(fixed.begin(), fixed.end());
  head.insert(head.end(), layout.begin(), layout.end());
  const bool sends_region = connection_->local() && !std::exchange(region_sent_, true);
  connection_->send(head, body, sends_region ? arena_.region()->fd() : -1);
}

void RemoteService::clear(uint64_t seq) {
  BatchEntry& entry = ring_->entry_at(seq);
  consumer_.close_layout(seq);
  const auto release = [&](uint64_t offset) {
    if (offset != 0) arena_.release(arena_.region()->base() + offset);
  };
  release(std::exchange(entry.block_offset, 0));
  release(std::exchange(entry.input_offset, 0));
  entry.block_bytes = 0;
  ring_->task_at(seq, 0).object = 0;
  consumer_.clear(seq);
  consumer_.advance_head(seq + 1);
}

}  // namespace penstock
