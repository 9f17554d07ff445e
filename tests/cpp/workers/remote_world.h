#pragma once

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
#include "penstock/net/listener.h"
#include "penstock/workers/remote_service.h"
#include "penstock/workers/remote_worker.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/supervisor.h"
#include "penstock/workers/ticket_runner.h"

// A RemoteWorker and the RemoteService that it is connected to.
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

}  // namespace
}  // namespace penstock
