// Any messages between a RemoteWorker and the RemoteService of another host. A service answers each
// message that is a ticket, and refuses the first that is none; a worker finishes its ticket, or
// leaves it to the supervisor.
//
//   byte 0: bit 7: messages to a worker, else to a service
//   a message: byte 0: bit 6: well-formed numbers, bit 5: its batch or packet is in memory, bit 4:
//   the memory's headers are what the body says   byte 1: bytes of the head   byte 2: bytes of the
//   body, in eights   then the head, then the body
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/memory/region_layout.h"
#include "penstock/net/listener.h"
#include "penstock/workers/remote_service.h"
#include "penstock/workers/remote_worker.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/supervisor.h"

using namespace penstock;

namespace {

constexpr uint32_t kPlaces = 3, kRows = 8;

struct Message {
  bool well_formed = false, in_memory = false, other_headers = false;
  std::vector<std::byte> head, body;
};

Message next_message(Input& input) {
  Message made;
  const uint8_t bits = input.byte();
  made.well_formed = bits & 64;
  made.in_memory = bits & 32;
  made.other_headers = bits & 16;
  const size_t head = input.byte(), body = 8 * size_t{input.byte()};
  made.head = input.take(head);
  made.body = input.take(body);
  return made;
}

using Pair = std::pair<std::unique_ptr<net::Connection>, std::unique_ptr<net::Connection>>;

Pair connected() {
  static auto* listener = new net::Listener("unix:@");  // ended with the process
  auto here = net::connect(listener->address());
  auto there = listener->accept(20);
  REQUIRE(there);
  return {std::move(here), std::move(there)};
}

// Makes a batch of the ticket's numbers, large enough to be shared if its step is odd; reads all
// that the ticket has.
class Runner : public TicketRunner {
 public:
  static size_t bytes_of_batch(uint64_t step) { return step % 2 == 0 ? 64 : 64 << 10; }
  void run(const Ticket& ticket, Slot& slot) override {
    uint64_t sum = ticket.epoch + ticket.step;
    for (uint32_t row = 0; row < kRows; ++row) {
      if (const auto ending = slot.ending({.row = row})) sum += ending->worker;
    }
    if (const std::byte* input = slot.input()) sum += static_cast<uint8_t>(*input);
    const size_t bytes = bytes_of_batch(ticket.step);
    std::byte* base = slot.memory(std::as_bytes(std::span("layout")), bytes);
    REQUIRE(base != nullptr);
    std::memset(base, static_cast<int>(sum & 0xff), bytes);
    slot.finish_inline(ResultKind::kRows, 64, {});
  }
};

RemoteTurn& turn() {
  static const os::Fd status = os::memory_file("penstock-status", sizeof(RemoteStatus));
  static auto* one = new RemoteTurn(status.get());
  return *one;
}

template <class Head>
void with_numbers(Message& message, const Head& head) {
  message.head.resize(std::max(message.head.size(), sizeof head));
  std::memcpy(message.head.data(), &head, sizeof head);
}

template <class Head>
Head numbers_of(const Message& message) {
  Head head;
  std::memcpy(&head, message.head.data(), std::min(message.head.size(), sizeof head));
  return head;
}

void send(net::Connection& connection, const Message& message, int descriptor = -1) {
  const std::array parts{std::span<const std::byte>(message.body)};
  connection.send(message.head, parts, descriptor);
}

// A ticket that a service may take.
void make_ticket(Message& message) {
  auto ticket = numbers_of<RemoteTicket>(message);
  ticket.kind = RemoteKind::kTicket;
  ticket.worker %= kPlaces + 1;
  ticket.rows %= kRows + 2;
  ticket.begin = 0;
  ticket.end = ticket.rows;
  ticket.poisoned %= 1 + static_cast<uint32_t>(message.body.size() / sizeof(RemotePoisoned));
  with_numbers(message, ticket);
}

void to_service(Input& input) {
  auto [here, there] = connected();
  RemoteService service(std::move(there), {kPlaces, kRows}, turn());
  std::thread serving([&service, connection = here.get()] {
    Runner runner;
    try {
      service.serve(runner);
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss);
      connection->close();  // as the process's end does
    }
  });
  std::shared_ptr<Region> region;
  try {
    for (int messages = 0; messages < 10 && !input.empty(); ++messages) {
      Message message = next_message(input);
      if (message.well_formed) make_ticket(message);
      send(*here, message);
      const auto answer = here->receive(20);
      if (!answer) break;
      const auto result = message_in<RemoteResult>(answer->head);
      const uint64_t bytes = Runner::bytes_of_batch(message_in<RemoteTicket>(message.head).step);
      REQUIRE(result.result == ResultKind::kRows && result.batch_bytes == bytes);
      REQUIRE(answer->body_bytes + result.batch.bytes == bytes);
      if (answer->descriptor) region = Region::open(answer->descriptor.get());
      if (result.batch.bytes != 0) REQUIRE(Lease(region, result.batch).bytes() == bytes);
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kClosed);
  }
  here->close();
  serving.join();
}

// A result whose sizes are those of its body.
void make_result(Message& message) {
  auto result = numbers_of<RemoteResult>(message);
  result.kind = RemoteKind::kResult;
  result.result = static_cast<ResultKind>(static_cast<uint32_t>(result.result) % 13);
  const uint64_t size = message.body.size();
  result.batch_bytes = std::min(result.batch_bytes % 256 * 8, size);
  result.tree_bytes = size - result.batch_bytes;
  result.tail_bytes = 0;
  with_numbers(message, result);
}

// The memory of a service, with one block that is shared anew for each message.
class Memory {
 public:
  int descriptor() const { return arena_.region()->fd(); }

  // Makes the message's batch or packet lie here, or nearly.
  void put(Message& message) {
    const Ref shared = arena_.share(block_).value_or(Ref{});
    auto result = numbers_of<RemoteResult>(message);
    Ref& ref = result.layout_row % 2 == 0 ? result.batch : result.packet;
    (result.layout_row % 2 == 0 ? result.packet : result.batch) = {};
    if (message.well_formed) {
      ref = shared;
      result.batch_bytes = result.batch.bytes;
      result.tree_bytes = result.packet.bytes;
    } else {
      ref.offset = shared.offset + ref.offset % 3 * 64;
      ref.bytes = kBytes - ref.bytes % 2;
      ref.generation = shared.generation + ref.generation % 2;
    }
    with_numbers(message, result);
    if (message.other_headers) write_headers(shared, message.body, !message.well_formed);
    message.body.clear();
  }

 private:
  static constexpr size_t kBytes = 64 << 10;

  void write_headers(const Ref& ref, const std::vector<std::byte>& words, bool region_too) {
    std::byte* const base = arena_.region()->base();
    const size_t block = std::min(words.size(), sizeof(BlockHeader));
    std::memcpy(base + ref.offset, words.data(), block);
    if (!region_too) return;
    std::memcpy(base, words.data() + block, std::min(words.size() - block, sizeof(RegionHeader)));
  }

  Allocator arena_{Region::create(Region::Kind::kShared, 1 << 20)};
  void* const block_ = arena_.allocate(kBytes);
};

void to_worker(Input& input) {
  Memory shared;
  bool sent = false;
  const auto ring = TicketRing::create({.entries = 4, .workers = kPlaces, .rows = kRows}, false);
  Allocator arena(Region::create(Region::Kind::kPrivate));
  LocalMemory memory(arena);
  Supervisor supervisor(*ring, arena, {});
  auto [here, there] = connected();
  RemoteWorker worker(*ring, arena, std::move(here));
  supervisor.attach_remote(1, [&] { worker.cut(); });
  for (int tickets = 0; tickets < 4 && !input.empty() && !worker.ended(); ++tickets) {
    BatchEntry& next = RingConsumer(*ring).next_entry();
    next.epoch = next.base = next.step = next.version = 1;
    next.rows = kRows;
    next.granules = 1;
    next.owner = kAnyWorker;
    next.stream = 0;
    next.input_offset = 0;
    RingConsumer(*ring).publish(next);
    const uint64_t seq = next.seq;
    RingWorker end(*ring, 1);
    TicketRing::Claim claim;
    REQUIRE(end.claim(claim));
    Slot slot(*ring, claim, &memory, worker);
    REQUIRE(slot.read_ticket());
    Message message = next_message(input);
    if (message.well_formed) make_result(message);
    if (message.in_memory && sent) shared.put(message);
    const int descriptor = std::exchange(sent, true) ? -1 : shared.descriptor();
    std::thread answering([&] {
      try {
        if (there->receive(20)) send(*there, message, descriptor);
        if (!message.well_formed) there->close();  // a message that announces more than it has
      } catch (const Error& error) {
        REQUIRE(error.code() == Code::kClosed);
      }
    });
    run_slot(worker, slot);
    answering.join();
    const Task& task = ring->task_at(seq, 0);
    if (worker.ended()) break;
    REQUIRE(Task::state_of(task.word.load()) == TaskState::kDone);
    if (task.length > Slot::kInline) (void)take_spill(ring->task_at(seq, 0));
    RingConsumer(*ring).close_layout(seq);
    RingConsumer(*ring).clear(seq);
    RingConsumer(*ring).advance_head(seq + 1);
  }
  supervisor.close(0);
  worker.cut();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  if (input.byte() & 128) {
    to_worker(input);
  } else {
    to_service(input);
  }
  REQUIRE(turn().mutex().try_lock());  // free for the process's other services
  turn().mutex().unlock();
  return 0;
}
