// A RemoteWorker and a RemoteService on one host: large results in memory that both share.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/memory/region_layout.h"
#include "tests/cpp/workers/remote_world.h"

namespace penstock {
namespace {

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
      const std::unique_ptr<Spill> spill = take_spill(task);
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
      kept = take_spill(world.run(world.post(step)));
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

}  // namespace
}  // namespace penstock
