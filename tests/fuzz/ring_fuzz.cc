// Any words in the memory that the worker processes of a Loader share with the consumer's process:
// the ring of tickets and the consumer's arena. The consumer goes on, or gets an error; its process
// reads and writes nothing outside of the memory, follows no pointer from there, and waits for no
// worker without a timeout.
//
//   a step: byte 0: the lowest four bits: what is done, see Step   then, for kWrite: byte 1: the
//   part that is written to, byte 2: which of its kind, bytes 3 and 4: the word in the part, byte
//   5: the bytes that follow of the new word
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/pipeline/indexed_tickets.h"
#include "fuzz/input.h"
#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "penstock/memory/byte_budget.h"
#include "penstock/memory/region_layout.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/slot.h"
#include "penstock/workers/ticket_failures.h"
#include "penstock/workers/ticket_runner.h"

using namespace penstock;

namespace {

constexpr uint32_t kWorkers = 3;
constexpr uint64_t kBatch = 4, kRowBytes = 64;
constexpr size_t kArenaBytes = 16 * Region::kFirstBlock;

enum class Step { kWrite, kWork, kHalf, kTake, kDied, kLate, kServe, kFail, kArena, kLook, kCount };
enum class Part { kRing, kPlace, kLane, kTask, kPoisoned, kEntry, kRegion, kBlock, kCount };

// Rows of one column of uint8.
class Worker : public TicketRunner {
 public:
  Worker() : spec_({Leaf{"x", LeafKind::kDense, DType::kUint8, {int64_t{kRowBytes}}}}) {}
  const ElementSpec& spec() const { return spec_; }
  void run(const Ticket& ticket, Slot& slot) override {
    const BlockLayout layout(spec_, ticket.rows);
    if (std::byte* to = slot.memory(spec_.bytes(), layout.bytes(), ticket.begin)) {
      std::memset(to, 7, layout.bytes());
      slot.finish_inline(ResultKind::kRows, layout.bytes(), {});
    } else {
      slot.finish_inline(ResultKind::kMismatch, 0, {});
    }
  }

 private:
  ElementSpec spec_;
};

class World {
 public:
  World()
      : ring_(TicketRing::create({8, 2, kWorkers}, true)),
        theirs_(TicketRing::open(ring_->fd())),
        region_(Region::create(Region::Kind::kShared, kArenaBytes)),
        opened_(Region::open(region_->fd())),
        arena_(region_, {.max_bytes = kArenaBytes}),
        memory_(arena_),
        tickets_(Order({.length = 40, .batch_size = kBatch})),
        scheduler_(*ring_, arena_, tickets_, budget_, options(), [](Task& task) { drop(task); }),
        failures_(*ring_, {.timeout_ns = 1}, [](uint32_t worker, bool) {
          REQUIRE(worker < kWorkers);
          return true;
        }) {
    scheduler_.begin_epoch();
  }
  ~World() {
    ring_->close();
    scheduler_.drain();
  }

  void step(Input& input) {
    switch (static_cast<Step>((input.byte() & 15) % static_cast<int>(Step::kCount))) {
      case Step::kWrite:
        write(input);
        break;
      case Step::kWork:
        work(false);
        break;
      case Step::kHalf:
        work(true);
        break;
      case Step::kTake:
        take();
        break;
      case Step::kDied:
        (void)failures_.reopen(input.byte() % kWorkers);
        break;
      case Step::kLate:
        (void)failures_.check();
        break;
      case Step::kServe:
        (void)serve_space_requests(*ring_, arena_);
        break;
      case Step::kFail:
        scheduler_.fail();
        scheduler_.begin_epoch();
        break;
      case Step::kArena:
        lease_and_return();
        break;
      case Step::kLook:
        look();
        break;
      case Step::kCount:
        break;
    }
  }

 private:
  static Scheduler::Options options() {
    Scheduler::Options options;
    options.queue = 3;
    options.workers = kWorkers;
    options.granule_rows = kBatch / 2;
    return options;
  }

  static void drop(Task& task) {
    if (task.length > Slot::kInline && task.block.arena == kSpilled) (void)take_spill(task);
  }

  void write(Input& input) {
    const auto part = static_cast<Part>(input.byte() % static_cast<int>(Part::kCount));
    const size_t which = input.byte();
    size_t at = input.byte();
    at |= size_t{input.byte()} << 8;
    const std::vector<std::byte> bytes = input.take(input.byte() % 9);
    const std::span<std::byte> to = memory_of(part, which);
    at = at * sizeof(uint64_t) % to.size();
    std::memcpy(to.data() + at, bytes.data(), std::min(bytes.size(), to.size() - at));
  }

  std::span<std::byte> memory_of(Part part, size_t which) {
    const auto of = [](auto& object) { return std::as_writable_bytes(std::span(&object, 1)); };
    const uint32_t granule = which % 2;
    switch (part) {
      case Part::kRing:
        return {reinterpret_cast<std::byte*>(&theirs_->place(0)) - 4096, sizeof(RingHeader)};
      case Part::kPlace:
        return of(theirs_->place(which % kWorkers)).first(offsetof(WorkerPlace, trace) + 64);
      case Part::kLane:
        return of(theirs_->header()).first(offsetof(LaneHeader, consumer_trace) + 64);
      case Part::kTask:
        return of(theirs_->task_at(which / 2, granule));
      case Part::kPoisoned: {
        TicketRing::Claim claim;
        claim.task = &theirs_->task_at(which / 2, granule);
        return std::as_writable_bytes(theirs_->poisoned_of(claim)).first(64);
      }
      case Part::kEntry:
        return of(theirs_->entry_at(which)).first(offsetof(BatchEntry, layout) + 64);
      case Part::kRegion:
        return {opened_->base(), sizeof(RegionHeader)};
      default: {
        const size_t units = opened_->committed() / Region::kFirstBlock;
        return {opened_->base() + which % units * Region::kFirstBlock, 4 * sizeof(BlockHeader)};
      }
    }
  }

  // As a worker in the consumer's process, for another host. `half`: dies inside.
  void work(bool half) {
    RingWorker end(*ring_, 1);
    TicketRing::Claim claim;
    if (!end.claim(claim)) return;
    Slot slot(*ring_, claim, &memory_, worker_);
    if (half || !slot.read_ticket()) return;
    // A batch without memory waits for a server.
    const auto state = BatchEntry::layout_state_of(claim.entry->layout_state.load());
    if (state == LayoutState::kReady || state == LayoutState::kNoSpace) run_slot(worker_, slot);
  }

  void take() {
    scheduler_.make_ahead();
    const uint64_t epoch = scheduler_.position().epoch;
    const auto poll = scheduler_.poll(epoch);
    if (poll == Scheduler::Poll::kEpochEnd) scheduler_.begin_epoch();
    if (poll == Scheduler::Poll::kWait) scheduler_.wait(0);
    if (poll != Scheduler::Poll::kBatch) return;
    REQUIRE(scheduler_.current().epoch == epoch && scheduler_.current().rows == kBatch);
    if (const auto failed = scheduler_.failed_granule()) {
      const Task& task = ring_->task_at(scheduler_.current_seq(), *failed);
      REQUIRE(error_in(task).what() != nullptr && text_in(task).size() <= Slot::kInline);
      scheduler_.fail();
      scheduler_.begin_epoch();
      return;
    }
    try {
      const BatchEntry& entry = scheduler_.current();
      const ElementSpec spec(std::span(entry.layout, entry.layout_length));
      const Lease lease = scheduler_.take_rows();
      const Block rows(std::make_shared<ElementSpec>(spec), kBatch, lease.data(), lease.bytes(),
                       lease.owner());
      (void)rows.batch();
      scheduler_.deliver(lease.bytes(), kBatch);
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kOutOfMemory ||
              error.code() == Code::kInternal);
      scheduler_.fail();
      scheduler_.begin_epoch();
    }
  }

  void lease_and_return() {
    if (void* block = arena_.allocate(200)) {
      if (const auto ref = arena_.share(block)) {
        try {
          const Lease lease(opened_, *ref);
          REQUIRE(opened_->contains(lease.data() + lease.bytes() - 1));
          std::memset(lease.data(), 1, lease.bytes());
        } catch (const Error&) {
          // The header is damaged.
        }
      }
      arena_.release(block);
    }
    arena_.trim();
    REQUIRE(region_->committed() <= kArenaBytes && opened_->committed() <= kArenaBytes);
  }

  void look() {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      (void)ring_->figures(w);
      (void)events_of(ring_->place(w).trace);
    }
    (void)events_of(ring_->consumer_trace());
    for (uint64_t seq = ring_->oldest(); seq < ring_->posted(); ++seq) {
      for (uint32_t g = 0; g < ring_->granules_at(seq); ++g) {
        const auto claim = ring_->claim_in(seq, g, ring_->task_at(seq, g).word.load());
        const Ticket ticket = ticket_of(claim);
        REQUIRE(ticket.begin <= ticket.end && ticket.end <= ticket.rows);
        (void)ring_->ending(claim, Call());
        (void)take_spill(*claim.task);
      }
    }
  }

  std::unique_ptr<TicketRing> ring_, theirs_;
  std::shared_ptr<Region> region_, opened_;
  Allocator arena_;
  LocalMemory memory_;
  testing::IndexedTickets tickets_;
  ByteBudget budget_{UINT64_MAX};
  Scheduler scheduler_;
  TicketFailures failures_;
  Worker worker_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  World world;
  for (int steps = 0; steps < 200 && !input.empty(); ++steps) world.step(input);
  return 0;
}
