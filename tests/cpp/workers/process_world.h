// Worker processes under a supervisor, with a scheduler that takes their results. The processes are
// forked before any thread is started, and wait until they get a place.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../memory/child.h"
#include "../pipeline/indexed_tickets.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/scheduler/scheduler.h"
#include "penstock/workers/supervisor.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock::testing {

inline constexpr uint32_t kRows = 8, kGranuleRows = 4;
inline constexpr uint64_t kRowBytes = 5000;

inline std::byte fill_of(uint64_t step, uint64_t row) { return std::byte(step * 16 + row + 1); }

// The behaviour of a worker: called for each row before it is written (`after` false) and after
// (true), and at the end of a ticket (row == its end). `times` counts these calls for the row, in
// memory that all processes share.
using Behaviour = std::function<void(const Ticket&, uint32_t row, bool after, uint32_t times)>;

struct Scratch {  // shared by all processes
  std::atomic<uint32_t> times[64][kRows + 1][2];
};

class FeedRows : public BatchMemory {
 public:
  FeedRows(std::shared_ptr<Region> region, int link) : region_(std::move(region)), link_(link) {}
  std::byte* at(uint64_t offset) override { return region_->base() + offset; }
  void request(TicketRing&) override { link_send(link_, {LinkMessage::kSpace, 0, 0, 0}); }

 private:
  std::shared_ptr<Region> region_;
  int link_;
};

class RowWriter : public TicketRunner {
 public:
  RowWriter(Scratch& scratch, const Behaviour& behaviour)
      : scratch_(scratch), behaviour_(behaviour) {}
  void run(const Ticket& ticket, Slot& slot) override {
    std::byte* base = nullptr;
    for (uint32_t row = 0; row < ticket.end - ticket.begin; ++row) {
      slot.progress({row});
      if (slot.ending({row})) continue;
      happen(ticket, ticket.begin + row, false);
      if (base == nullptr) {
        base = slot.memory(std::as_bytes(std::span("rows", 4)), ticket.rows * kRowBytes);
      }
      uint32_t r = ticket.begin + row;
      std::memset(base + r * kRowBytes, int(fill_of(ticket.step, r)), kRowBytes);
      happen(ticket, ticket.begin + row, true);
    }
    slot.progress({.what = kCollating});
    happen(ticket, ticket.end, false);
    slot.finish_inline(ResultKind::kRows, 1, {});
  }

 private:
  void happen(const Ticket& ticket, uint32_t row, bool after) {
    auto& times = scratch_.times[ticket.step % 64][row][after];
    if (behaviour_) behaviour_(ticket, row, after, times.fetch_add(1));
  }
  Scratch& scratch_;
  const Behaviour& behaviour_;
};

// The code of a worker process that does not serve the ring.
using Life = std::function<void(TicketRing&, uint32_t worker, int link)>;

class ProcessWorld {
 public:
  struct Settings {
    uint64_t steps = 20;
    uint32_t workers = 2, spares = 4;
    Supervisor::Policy policy = {};
    Behaviour behaviour = {};
    Life life = {};
  };

  explicit ProcessWorld(Settings s)
      : settings_(std::move(s)),
        scratch_(static_cast<Scratch*>(os::reserve_mapping(-1, sizeof(Scratch), true))),
        order_({.length = settings_.steps * kRows, .batch_size = kRows}),
        tickets_(order_),
        ring_(TicketRing::create({16, kRows / kGranuleRows, settings_.workers}, true)),
        arena_(Region::create(Region::Kind::kShared)) {
    for (uint32_t i = 0; i < settings_.workers + settings_.spares; ++i) fork_one();
    supervisor_ = std::make_unique<Supervisor>(*ring_, arena_, settings_.policy);
    Scheduler::Options options;
    options.queue = 4;
    options.workers = settings_.workers;
    options.granule_rows = kGranuleRows;
    options.pause_at_epochs = true;
    scheduler_ =
        std::make_unique<Scheduler>(*ring_, arena_, tickets_, budget_, options, [](Task&) {});
    for (uint32_t w = 0; w < settings_.workers; ++w) employ(w);
    watcher_ = std::thread([this] { watch(); });
  }
  ~ProcessWorld() {
    supervisor_->close(2'000'000'000);
    watcher_.join();
    for (Process& p : processes_) {
      p.go.reset();  // ends the processes that were not needed
      p.link.reset();
      status_of(p.pid);
    }
    os::unmap(scratch_, sizeof(Scratch));
  }

  TicketRing& ring() { return *ring_; }
  Scheduler& feed() { return *scheduler_; }
  Supervisor& supervisor() { return *supervisor_; }
  std::vector<Supervisor::Event> events() {
    std::lock_guard lock(mutex_);
    return events_;
  }
  void until_event(Supervisor::Kind kind, int count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      int seen = 0;
      for (auto& event : events_) seen += event.kind == kind;
      return seen >= count;
    });
  }

  // Takes the next batch: returns its kind (that of the first task without rows), and checks its
  // rows except `lost` (step, row).
  ResultKind take(uint64_t step, std::optional<std::pair<uint64_t, uint32_t>> lost = {},
                  Task* failed = nullptr) {
    while (scheduler_->poll(0) != Scheduler::Poll::kBatch) {
      if (ring_->closed()) return ResultKind::kNone;
      scheduler_->wait(1'000'000'000);
    }
    EXPECT_EQ(scheduler_->current().step, step);
    for (uint32_t g = 0; g < scheduler_->current().granules; ++g) {
      Task& task = ring_->task_at(scheduler_->current_seq(), g);
      if (task.kind == ResultKind::kRows) continue;
      if (failed != nullptr) {
        failed->kind = task.kind;
        failed->bytes = task.bytes;
        failed->worker = task.worker;
        failed->object = task.object;
        failed->length = task.length;
        failed->block = task.block;
      }
      return task.kind;
    }
    Lease lease = scheduler_->take_rows();
    for (uint32_t row = 0; row < kRows; ++row) {
      if (lost && *lost == std::pair{step, row}) continue;
      for (uint64_t at = 0; at < kRowBytes; at += 100) {
        EXPECT_EQ(lease.data()[row * kRowBytes + at], fill_of(step, row)) << step << " " << row;
      }
    }
    scheduler_->deliver(1, kRows);
    return ResultKind::kRows;
  }
  void take_all() {
    scheduler_->begin_epoch();
    for (uint64_t step = 0; step < settings_.steps; ++step) {
      ASSERT_EQ(take(step), ResultKind::kRows) << step;
    }
  }

 private:
  struct Process {
    pid_t pid;
    os::Fd go, link;
  };

  void fork_one() {
    int go[2];
    ASSERT_EQ(pipe(go), 0);
    auto ends = link_pair();
    os::Fd ours = std::move(ends.first), theirs = std::move(ends.second);
    pid_t pid = start_child([&] {
      close(go[1]);
      ours.reset();
      for (Process& p : processes_) p.go.reset();  // copies of older siblings' descriptors
      uint32_t worker;
      if (read(go[0], &worker, sizeof(worker)) != sizeof(worker)) return true;
      const auto ring = TicketRing::open(ring_->fd());
      if (settings_.life) {
        settings_.life(*ring, worker, theirs.get());
        return true;
      }
      RowWriter writer(*scratch_, settings_.behaviour);
      FeedRows rows(Region::open(arena_.region()->fd()), theirs.get());
      serve(*ring, worker, writer, &rows);
      return true;
    });
    close(go[0]);
    processes_.push_back({pid, os::Fd(go[1]), std::move(ours)});
  }
  void employ(uint32_t worker) {
    ASSERT_LT(next_, processes_.size());
    Process& p = processes_[next_++];
    supervisor_->attach(worker, os::open_process(p.pid), std::move(p.link));
    ASSERT_EQ(write(p.go.get(), &worker, sizeof(worker)), ssize_t(sizeof(worker)));
  }
  void watch() {
    for (;;) {
      Supervisor::Event event = supervisor_->wait();
      if (event.kind == Supervisor::Kind::kClosed) return;
      if (event.kind == Supervisor::Kind::kDied && !ring_->closed()) employ(event.worker);
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    }
  }

  Settings settings_;
  Scratch* scratch_;
  Order order_;
  testing::IndexedTickets tickets_;
  std::unique_ptr<TicketRing> ring_;
  Allocator arena_;
  std::vector<Process> processes_;
  size_t next_ = 0;
  std::unique_ptr<Supervisor> supervisor_;
  ByteBudget budget_{UINT64_MAX};
  std::unique_ptr<Scheduler> scheduler_;
  std::thread watcher_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Supervisor::Event> events_;
};

}  // namespace penstock::testing
