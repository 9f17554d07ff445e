// A RemoteWorker and a RemoteService over loopback: results in their slots, lost connections.
#include "penstock/workers/remote_worker.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/memory/region_layout.h"
#include "penstock/net/listener.h"
#include "penstock/workers/remote_service.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/supervisor.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {
namespace {

constexpr uint32_t kRemotePlaces = 3;
constexpr char kNetwork[] = "tcp://127.0.0.1:0", kOneHost[] = "unix:@";

std::span<const std::byte> text_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What the other host does with a ticket.
class RemoteRunner : public TicketRunner {
 public:
  using Function = std::function<void(const Ticket&, Slot&)>;
  explicit RemoteRunner(Function function) : function_(std::move(function)) {}
  void run(const Ticket& ticket, Slot& slot) override { function_(ticket, slot); }

 private:
  Function function_;
};

std::pair<std::unique_ptr<net::Connection>, std::unique_ptr<net::Connection>> connected(
    const char* address = kNetwork) {
  net::Listener listener(address);
  std::unique_ptr<net::Connection> here;
  std::thread connecting([&] { here = net::connect(listener.address()); });
  auto there = listener.accept(10);
  connecting.join();
  return {std::move(here), std::move(there)};
}

// A consumer's ring with one remote worker, and the service that it is connected to.
struct RemoteWorld {
  explicit RemoteWorld(RemoteRunner::Function function, const char* address = kNetwork)
      : ring(TicketRing::create({.entries = 4, .workers = kRemotePlaces, .rows = 8}, false)),
        arena(Region::create(Region::Kind::kPrivate)),
        memory(arena),
        supervisor(*ring, arena, {}),
        status(os::memory_file("penstock-status", sizeof(RemoteStatus))),
        runner(std::move(function)) {
    turn = std::make_unique<RemoteTurn>(status.get());
    auto [ours, theirs] = connected(address);
    worker = std::make_unique<RemoteWorker>(*ring, arena, std::move(ours));
    service = std::make_unique<RemoteService>(std::move(theirs),
                                              RemoteService::Shape{kRemotePlaces, 8}, *turn);
    serving = std::thread([this] { service->serve(runner); });
    supervisor.attach_remote(1, [this] { worker->cut(); });
  }
  ~RemoteWorld() {
    supervisor.close(0);  // cuts the worker
    worker->cut();        // if the supervisor does not know it any more
    serving.join();
  }

  uint64_t post(uint64_t step, uint64_t input = 0) {
    BatchEntry& next = RingConsumer(*ring).next_entry();
    next.epoch = 3;
    next.base = 5;
    next.step = step;
    next.version = 7;
    next.rows = 8;
    next.granules = 1;
    next.owner = kAnyWorker;
    next.stream = 0;
    next.input_offset = input;
    RingConsumer(*ring).publish(next);
    return next.seq;
  }
  // Runs a posted ticket in place 1.
  Task& run(uint64_t seq) {
    RingWorker end(*ring, 1);
    TicketRing::Claim claim;
    EXPECT_TRUE(end.claim(claim));
    Slot slot(*ring, claim, &memory, *worker);
    EXPECT_TRUE(slot.read_ticket());
    run_slot(*worker, slot);
    return ring->task_at(seq, 0);
  }
  TaskState state(uint64_t seq) { return Task::state_of(ring->task_at(seq, 0).word.load()); }
  uint32_t losses(uint64_t seq) { return Task::losses_of(ring->task_at(seq, 0).word.load()); }

  std::unique_ptr<TicketRing> ring;
  Allocator arena;
  LocalMemory memory;
  Supervisor supervisor;
  os::Fd status;
  RemoteRunner runner;
  std::unique_ptr<RemoteTurn> turn;
  std::unique_ptr<RemoteWorker> worker;
  std::unique_ptr<RemoteService> service;
  std::thread serving;
};

void finish_packet(Slot& slot, std::string_view packet) {
  slot.finish_inline(ResultKind::kPacket, packet.size(), text_bytes(packet));
}

TEST(RemoteWorker, a_batch_is_read_into_its_slot) {
  constexpr size_t kBytes = 3 << 20;
  RemoteWorld world([&](const Ticket& ticket, Slot& slot) {
    std::byte* base = slot.memory(text_bytes("layout"), kBytes, 2);
    std::memset(base, static_cast<int>(ticket.step), kBytes);
    slot.counters().samples.add(8);
    slot.finish_inline(ResultKind::kRows, kBytes, text_bytes("losses"));
  });
  for (uint64_t step = 1; step < 4; ++step) {
    const uint64_t seq = world.post(step);
    const Task& task = world.run(seq);
    EXPECT_EQ(world.state(seq), TaskState::kDone);
    EXPECT_EQ(task.kind, ResultKind::kRows);
    EXPECT_EQ(task.worker, 1u);
    EXPECT_EQ(task.bytes, kBytes);
    EXPECT_EQ(text_in({task.packet, task.length}), "losses");
    const BatchEntry& entry = world.ring->entry_at(seq);
    EXPECT_EQ(text_in({entry.layout, entry.layout_length}), "layout");
    EXPECT_EQ(entry.layout_row, 2u);
    const std::byte* base = world.memory.at(entry.block_offset);
    EXPECT_EQ(base[0], std::byte(step));
    EXPECT_EQ(base[kBytes - 1], std::byte(step));
  }
  EXPECT_EQ(world.ring->place(1).counters.samples.get(), 24u);
}

TEST(RemoteWorker, a_large_packet_is_a_spill_of_tree_and_tail) {
  const std::string tree(1000, 't'), first(64, 'a'), second(100'000, 'b');
  RemotePacket packet{text_bytes(tree), {text_bytes(first), text_bytes(second)}};
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    slot.finish_object(ResultKind::kPacket, 100'064, &packet);
  });
  Task& task = world.run(world.post(0));
  ASSERT_EQ(task.block.arena, kSpilled);
  const std::unique_ptr<Spill> spill(reinterpret_cast<Spill*>(task.object));
  EXPECT_EQ(spill->size, 1024 + 64 + 100'000u);
  const std::string all = text_in({spill->bytes.get(), spill->size});
  EXPECT_EQ(all, tree + std::string(24, '\0') + first + second);
}

TEST(RemoteWorker, the_ticket_arrives_as_it_is) {
  Ticket seen;
  uint32_t worker = 0;
  std::string input;
  RemoteWorld world([&](const Ticket& ticket, Slot& slot) {
    seen = ticket;
    worker = slot.claim().worker;
    input = text_in({slot.input(), 5});
    finish_packet(slot, "");
  });
  void* space = world.arena.allocate(5);
  std::memcpy(space, "input", 5);
  world.run(world.post(11, world.arena.region()->offset_of(space)));
  EXPECT_EQ(seen.epoch, 3u);
  EXPECT_EQ(seen.base, 5u);
  EXPECT_EQ(seen.step, 11u);
  EXPECT_EQ(seen.version, 7u);
  EXPECT_EQ(seen.rows, 8u);
  EXPECT_EQ(seen.end, 8u);
  EXPECT_EQ(worker, 1u);
  EXPECT_EQ(input, "input");
}

TEST(RemoteWorker, calls_that_must_not_be_tried_again_are_known_there) {
  std::vector<bool> ended;
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    for (uint32_t row = 0; row < 3; ++row) {
      const auto ending = slot.ending({.row = row});
      ended.push_back(ending.has_value());
      if (ending) {
        EXPECT_EQ(ending->worker, 2u);
        EXPECT_EQ(ending->kind, ResultKind::kLost);
      }
    }
    finish_packet(slot, "");
  });
  const uint64_t seq = world.post(0);
  TicketRing::Claim lost;
  ASSERT_TRUE(RingWorker(*world.ring, 2).claim(lost));
  RingSupervisor supervisor(*world.ring);
  ASSERT_TRUE(supervisor.poison(lost, {.row = 1}, ResultKind::kLost));
  supervisor.reopen_task(lost, 1);
  world.run(seq);
  EXPECT_EQ(ended, (std::vector{false, true, false}));
}

TEST(RemoteWorker, an_error_there_is_an_error_here) {
  RemoteWorld world([](const Ticket&, Slot&) {
    throw Error(Code::kInvalidArgument, "batch", "the rows differ");
  });
  const Task& task = world.run(world.post(0));
  ASSERT_EQ(task.kind, ResultKind::kBroken);
  EXPECT_NE(std::string(error_in(task).what()).find("the rows differ"), std::string::npos);
}

TEST(RemoteWorker, the_status_says_which_ticket_and_call_is_run) {
  RemoteStatus* status = nullptr;
  uint64_t running = 0, call = 0;
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    slot.progress({.row = 6});
    running = status->running.load();
    call = status->call.load();
    finish_packet(slot, "");
  });
  status = &world.turn->status();
  world.run(world.post(0));
  EXPECT_EQ(running, 2u);  // the place, plus 1
  EXPECT_EQ(Call::of(call).row, 6u);
  EXPECT_EQ(status->running.load(), 0u);
}

TEST(RemoteWorker, a_ticket_whose_connection_is_cut_is_opened_again) {
  std::atomic<bool> begun{false}, go_on{false};
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    begun.store(true);
    go_on.wait(false);
    finish_packet(slot, "late");
  });
  const uint64_t seq = world.post(0);
  std::thread cutting([&] {
    while (!begun.load()) std::this_thread::yield();
    world.worker->cut();
  });
  world.run(seq);
  cutting.join();
  EXPECT_EQ(world.state(seq), TaskState::kClaimed);
  EXPECT_TRUE(world.worker->lost());
  EXPECT_TRUE(world.worker->lost_ticket());
  world.supervisor.remote_ended(1, true);
  EXPECT_EQ(world.state(seq), TaskState::kOpen);
  EXPECT_EQ(world.losses(seq), 1u);
  EXPECT_EQ(world.ring->place(1).counters.deaths.get(), 1u);
  go_on.store(true);
  go_on.notify_all();
}

TEST(RemoteWorker, a_connection_that_ended_before_costs_a_ticket_nothing) {
  RemoteWorld world([](const Ticket&, Slot& slot) { finish_packet(slot, ""); });
  world.worker->cut();
  for (int time = 0; time < 5; ++time) {
    const uint64_t seq = time == 0 ? world.post(0) : world.ring->head();
    world.run(seq);
    EXPECT_FALSE(world.worker->lost_ticket());
    world.supervisor.remote_ended(1, world.worker->lost_ticket());
    EXPECT_EQ(world.state(seq), TaskState::kOpen);
    EXPECT_EQ(world.losses(seq), 0u);
  }
}

TEST(RemoteWorker, a_retired_worker_finishes_its_ticket_and_ends) {
  RemoteWorld* here = nullptr;
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    here->worker->retire();
    finish_packet(slot, "");
  });
  here = &world;
  const uint64_t first = world.post(0), second = world.post(1);
  serve(*world.ring, 1, *world.worker, &world.memory);
  EXPECT_EQ(world.state(first), TaskState::kDone);
  EXPECT_EQ(world.state(second), TaskState::kOpen);
  EXPECT_FALSE(world.worker->lost());
}

TEST(RemoteWorker, closing_the_supervisor_ends_a_wait_for_a_result) {
  std::atomic<bool> go_on{false};
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    go_on.wait(false);
    finish_packet(slot, "");
  });
  world.post(0);
  std::thread closing([&] {
    while (world.ring->place(1).tickets.load() == 0) std::this_thread::yield();
    world.supervisor.close(0);
  });
  serve(*world.ring, 1, *world.worker, &world.memory);
  closing.join();
  go_on.store(true);
  go_on.notify_all();
}

// ---- on one host -------------------------------------------------------------------------------

constexpr size_t kLarge = 3 << 20;

// A batch of kLarge bytes and a packet of as many, both of the step's number.
RemoteRunner::Function large_results() {
  struct Kept {
    std::string tree, tail;
    RemotePacket packet;
  };
  return [kept = std::make_shared<Kept>()](const Ticket& ticket, Slot& slot) {
    std::byte* base = slot.memory(text_bytes("layout"), kLarge);
    ASSERT_NE(base, nullptr);
    std::memset(base, static_cast<int>(ticket.step), kLarge);
    kept->tree.assign(100, static_cast<char>(ticket.step));
    kept->tail.assign(kLarge - 128, static_cast<char>(ticket.step));
    kept->packet = {text_bytes(kept->tree), {text_bytes(kept->tail)}};
    slot.finish_object(ResultKind::kRows, kLarge, &kept->packet);
  };
}

std::string large_packet(uint64_t step) {
  const char number = static_cast<char>(step);
  return std::string(100, number) + std::string(28, '\0') + std::string(kLarge - 128, number);
}

TEST(RemoteWorker, on_one_host_results_are_those_of_the_network) {
  for (const char* address : {kNetwork, kOneHost}) {
    SCOPED_TRACE(address);
    RemoteWorld world(large_results(), address);
    for (uint64_t step = 1; step < 7; ++step) {
      const uint64_t seq = world.post(step);
      Task& task = world.run(seq);
      ASSERT_EQ(task.block.arena, kSpilled);
      const std::unique_ptr<Spill> spill(reinterpret_cast<Spill*>(task.object));
      EXPECT_TRUE(text_in({spill->bytes.get(), spill->size}) == large_packet(step));
      const BatchEntry& entry = world.ring->entry_at(seq);
      const std::byte* base = world.memory.at(entry.block_offset);
      EXPECT_TRUE(text_in({base, kLarge}) == std::string(kLarge, static_cast<char>(step)));
      RingConsumer(*world.ring).close_layout(seq);
      RingConsumer(*world.ring).clear(seq);
      RingConsumer(*world.ring).advance_head(seq + 1);
    }
  }
}

TEST(RemoteWorker, a_packet_in_the_services_memory_outlives_the_service) {
  std::unique_ptr<Spill> kept;
  {
    RemoteWorld world(large_results(), kOneHost);
    for (uint64_t step = 1; step < 3; ++step) {
      kept.reset(reinterpret_cast<Spill*>(world.run(world.post(step)).object));
    }
    EXPECT_EQ(Lease::outstanding(), 1u) << "the second packet, and not its batch";
  }
  EXPECT_TRUE(text_in({kept->bytes.get(), kept->size}) == large_packet(2));
  kept.reset();
  EXPECT_EQ(Lease::outstanding(), 0u);
}

RemoteTicket whole_ticket(uint64_t step) {
  RemoteTicket ticket;
  ticket.rows = ticket.end = 8;
  ticket.step = step;
  return ticket;
}

TEST(RemoteService, large_results_do_not_pass_the_socket_of_one_host) {
  RemoteWorld world(large_results(), kOneHost);
  auto [ours, theirs] = connected(kOneHost);
  RemoteService service(std::move(theirs), {kRemotePlaces, 8}, *world.turn);
  RemoteRunner runner(large_results());
  std::thread serving([&] { service.serve(runner); });
  std::shared_ptr<Region> region;
  uint64_t first_offset = 0;
  for (uint64_t step = 1; step < 6; ++step) {
    RemoteTicket ticket = whole_ticket(step);
    // A consumer that has mapped too little gets its results through the socket.
    if (region != nullptr) ticket.mapped_bytes = step == 5 ? 4096 : region->reserve();
    ours->send(bytes_of_message(ticket));
    auto message = ours->receive(10);
    const auto result = message_in<RemoteResult>(message->head);
    EXPECT_EQ(static_cast<bool>(message->descriptor), step == 1);
    if (message->descriptor) region = Region::open(message->descriptor.get());
    if (step == 1 || step == 5) {
      EXPECT_EQ(message->body_bytes, 2 * kLarge);
      EXPECT_EQ(result.batch.bytes + result.packet.bytes, 0u);
      continue;
    }
    EXPECT_EQ(message->body_bytes, 0u);
    const Lease batch(region, result.batch), packet(region, result.packet);
    EXPECT_EQ(batch.data()[kLarge - 1], std::byte(step));
    EXPECT_TRUE(text_in({packet.data(), packet.bytes()}) == large_packet(step));
    if (step == 3) first_offset = region->offset_of(batch.data());
    if (step == 4) {
      EXPECT_EQ(region->offset_of(batch.data()), first_offset) << "its lease was returned";
    }
  }
  ours->close();
  serving.join();
}

// ---- what is no message -------------------------------------------------------------------------

struct Answer {
  const char* title;
  std::vector<std::byte> head;
  size_t body;
};

std::vector<std::byte> head_of(const RemoteResult& result, size_t layout = 0) {
  const auto bytes = bytes_of_message(result);
  std::vector<std::byte> head(bytes.begin(), bytes.end());
  head.resize(head.size() + layout);
  return head;
}

TEST(RemoteWorker, an_answer_that_is_no_result_ends_the_connection) {
  RemoteResult larger, kind;
  larger.batch_bytes = UINT64_MAX - 2;
  larger.tree_bytes = 10;
  kind.result = static_cast<ResultKind>(99);
  const std::vector<Answer> answers = {
      {"empty", {}, 0},
      {"short", std::vector<std::byte>(20), 0},
      {"sizes that overflow", head_of(larger), 7},
      {"a body that is not announced", head_of(RemoteResult{}), 7},
      {"an unknown kind of result", head_of(kind), 0},
  };
  for (const Answer& answer : answers) {
    SCOPED_TRACE(answer.title);
    RemoteWorld world([](const Ticket&, Slot& slot) { finish_packet(slot, ""); });
    auto [ours, theirs] = connected();
    RemoteWorker worker(*world.ring, world.arena, std::move(ours));
    std::thread answering([&] {
      theirs->receive(10);
      const std::vector<std::byte> body(answer.body);
      const std::span<const std::byte> parts[] = {body};
      theirs->send(answer.head, parts);
      theirs->receive(10);
    });
    const uint64_t seq = world.post(0);
    TicketRing::Claim claim;
    ASSERT_TRUE(RingWorker(*world.ring, 1).claim(claim));
    Slot slot(*world.ring, claim, &world.memory, worker);
    slot.read_ticket();
    run_slot(worker, slot);
    EXPECT_TRUE(worker.lost());
    EXPECT_FALSE(worker.why().empty());
    EXPECT_EQ(world.state(seq), TaskState::kClaimed);
    answering.join();
  }
}

TEST(RemoteWorker, memory_that_is_not_as_announced_ends_the_connection) {
  struct Lie {
    const char* title;
    std::function<void(Region&, Ref&, RemoteResult&)> tell;
  };
  const auto header = [](Region& region) { return reinterpret_cast<RegionHeader*>(region.base()); };
  const std::vector<Lie> lies = {
      {"another size", [](Region&, Ref&, RemoteResult& result) { result.batch_bytes += 64; }},
      {"no block", [](Region&, Ref& ref, RemoteResult&) { ref.offset += 64; }},
      {"beyond the memory", [](Region&, Ref& ref, RemoteResult&) { ref.offset = 1ull << 40; }},
      {"a block that was reused", [](Region&, Ref& ref, RemoteResult&) { ++ref.generation; }},
      {"a block beyond the file",
       [&](Region& region, Ref& ref, RemoteResult& result) {
         header(region)->committed = region.reserve();
         BlockHeader& block = *region.header_at(ref.offset);
         block.bytes = ref.bytes = result.batch_bytes = region.reserve() / 2;
       }},
      {"a header beyond the file",
       [&](Region& region, Ref& ref, RemoteResult&) {
         header(region)->committed = region.reserve();
         ref.offset = region.reserve() - 64;
       }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.title);
    RemoteWorld world([](const Ticket&, Slot& slot) { finish_packet(slot, ""); });
    auto [ours, theirs] = connected(kOneHost);
    RemoteWorker worker(*world.ring, world.arena, std::move(ours));
    Allocator memory(Region::create(Region::Kind::kShared, 64 << 20));
    void* const block = memory.allocate(kLarge);
    std::thread answering([&] {
      theirs->receive(10);
      theirs->send(bytes_of_message(RemoteResult{}), {}, memory.region()->fd());
      const auto ticket = message_in<RemoteTicket>(theirs->receive(10)->head);
      EXPECT_EQ(ticket.mapped_bytes, memory.region()->reserve());
      RemoteResult result;
      result.result = ResultKind::kRows;
      result.batch_bytes = kLarge;
      Ref ref = *memory.share(block);
      lie.tell(*memory.region(), ref, result);
      result.batch = ref;
      theirs->send(bytes_of_message(result));
      theirs->receive(10);
    });
    uint64_t seq = 0;
    for (int ticket = 0; ticket < 2; ++ticket) {
      seq = world.post(0);
      TicketRing::Claim claim;
      ASSERT_TRUE(RingWorker(*world.ring, 1).claim(claim));
      Slot slot(*world.ring, claim, &world.memory, worker);
      slot.read_ticket();
      EXPECT_FALSE(worker.lost());
      run_slot(worker, slot);
    }
    EXPECT_TRUE(worker.lost());
    EXPECT_EQ(world.state(seq), TaskState::kClaimed);
    answering.join();
  }
}

TEST(RemoteWorker, without_a_mapping_results_come_through_the_socket) {
  RemoteWorld world([](const Ticket&, Slot& slot) { finish_packet(slot, ""); });
  auto [ours, theirs] = connected(kOneHost);
  RemoteWorker worker(*world.ring, world.arena, std::move(ours));
  const os::Fd no_region = os::memory_file("no region", 1 << 20);
  std::thread answering([&] {
    for (int ticket = 0; ticket < 2; ++ticket) {
      EXPECT_EQ(message_in<RemoteTicket>(theirs->receive(10)->head).mapped_bytes, 0u);
      theirs->send(bytes_of_message(RemoteResult{}), {}, ticket == 0 ? no_region.get() : -1);
    }
  });
  for (int ticket = 0; ticket < 2; ++ticket) {
    const uint64_t seq = world.post(0);
    TicketRing::Claim claim;
    ASSERT_TRUE(RingWorker(*world.ring, 1).claim(claim));
    Slot slot(*world.ring, claim, &world.memory, worker);
    slot.read_ticket();
    run_slot(worker, slot);
    EXPECT_EQ(world.state(seq), TaskState::kDone);
  }
  answering.join();
}

TEST(RemoteService, a_ticket_that_does_not_add_up_ends_the_connection) {
  RemoteTicket place, rows, list;
  for (RemoteTicket* each : {&place, &rows, &list}) each->rows = each->end = 8;
  place.worker = kRemotePlaces;
  rows.rows = rows.end = 9;
  list.poisoned = 5;
  for (const RemoteTicket& ticket : {place, rows, list}) {
    RemoteWorld world([](const Ticket&, Slot& slot) { finish_packet(slot, ""); });
    auto [ours, theirs] = connected();
    RemoteService service(std::move(theirs), {kRemotePlaces, 8}, *world.turn);
    ours->send(bytes_of_message(ticket));
    try {
      service.serve(world.runner);
      FAIL() << "served";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace penstock
