// A RemoteWorker and a RemoteService over loopback: results in their slots, lost connections.
#include "penstock/workers/remote_worker.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/workers/remote_world.h"

namespace penstock {
namespace {

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
  const std::unique_ptr<Spill> spill = take_spill(task);
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

TEST(RemoteWorker, the_status_names_the_consumer_of_the_ticket) {
  RemoteStatus* status = nullptr;
  uint64_t running = 0;
  RemoteWorld world([&](const Ticket&, Slot& slot) {
    running = status->running.load();
    finish_packet(slot, "");
  });
  status = &world.turn->status();
  auto [ours, theirs] = connected();
  RemoteService service(std::move(theirs), {kRemotePlaces, 8, 5}, *world.turn);
  std::thread serving([&] { service.serve(world.runner); });
  world.worker->cut();
  world.worker = std::make_unique<RemoteWorker>(*world.ring, world.arena, std::move(ours));
  world.run(world.post(0));
  EXPECT_EQ(running >> 32, 5u);
  EXPECT_EQ(running & 0xffffffff, 2u);  // the place, plus 1
  EXPECT_EQ(running, RemoteStatus::running_word(5, 1));
  world.worker->cut();
  serving.join();
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

TEST(RemoteService, memory_grows_with_what_arrives_and_not_with_what_is_announced) {
  RemoteWorld world([](const Ticket&, Slot& slot) { finish_packet(slot, ""); });
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  os::Fd ours(ends[0]);
  auto theirs =
      std::make_unique<net::Connection>(os::Fd(ends[1]), true, "a test", net::ConnectionLimits());
  RemoteService service(std::move(theirs), {kRemotePlaces, 8}, *world.turn);
  const RemoteTicket ticket;
  const net::FrameHeader header{.head_bytes = sizeof ticket, .body_bytes = uint64_t{1} << 40};
  const std::array<char, 100> body{};
  ASSERT_EQ(write(ours.get(), &header, sizeof header), ssize_t{sizeof header});
  ASSERT_EQ(write(ours.get(), &ticket, sizeof ticket), ssize_t{sizeof ticket});
  ASSERT_EQ(write(ours.get(), body.data(), body.size()), static_cast<ssize_t>(body.size()));
  ours.reset();
  service.serve(world.runner);  // ends with the connection
}

}  // namespace
}  // namespace penstock
