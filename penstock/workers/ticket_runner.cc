#include "penstock/workers/ticket_runner.h"

#include <algorithm>
#include <exception>
#include <string>

#include "penstock/base/clock.h"
#include "penstock/workers/ring_worker.h"

namespace penstock {

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), Slot::kInline)));
}

// An error as a packet: code, length of the operation, operation, text; the text is cut to fit.
std::string packet_of(const Error& error) {
  const std::string operation = error.operation().substr(0, UINT8_MAX);
  std::string text = error.what();
  if (text.starts_with(operation + ": ")) text.erase(0, operation.size() + 2);
  return std::string{static_cast<char>(error.code()), static_cast<char>(operation.size())} +
         operation + text;
}

class Serving {
 public:
  explicit Serving(WorkerPlace& place) : place_(place) { place_.serving.store(1); }
  ~Serving() { place_.serving.store(0); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

 private:
  WorkerPlace& place_;
};

// Counts a worker's time: busy with tickets, or waiting for them.
class Stopwatch {
 public:
  explicit Stopwatch(WorkerPlace& place) : place_(place), trace_(&place.trace), mark_(now_ns()) {
    // The previous worker of this place died waiting.
    if (place_.waiting_since.load() != 0) mark_ = count_wait(UINT64_MAX);
  }

  void ran(const Ticket& ticket, uint32_t granule, uint64_t waited_ns) {
    place_.counters.tickets.add_single_writer();
    ++untimed_;
    ticket_ = ticket;
    granule_ = granule;
    if (quick_ && waited_ns == 0 && untimed_ < kUntimed) return;
    uint64_t end = settle();
    if (waited_ns == 0) return;
    // The time up to here was busy.
    place_.counters.busy_ns.add_single_writer(-waited_ns);
    place_.counters.wait_slot_ns.add_single_writer(waited_ns);
    trace_.record(TraceKind::kWaitSlot, end - waited_ns, end, ticket.epoch, ticket.step);
  }

  // Counts the tickets done since the last call. Returns the time.
  uint64_t settle() {
    if (untimed_ == 0) return mark_;
    uint64_t end = now_ns();
    uint64_t each = (end - mark_) / untimed_;
    place_.counters.busy_ns.add_single_writer(end - mark_);
    trace_.record(TraceKind::kUser, mark_, end, ticket_.epoch, ticket_.step, granule_);
    uint64_t mean = place_.ticket_ns.load(std::memory_order_relaxed);
    place_.ticket_ns.store(mean == 0 ? each : mean - mean / 8 + each / 8,
                           std::memory_order_relaxed);
    quick_ = each < kQuickNs;
    untimed_ = 0;
    mark_ = end;
    return end;
  }

  // The wait has ended. It counts up to the time `last`, if it was marked as a wait.
  void waited(uint64_t last = UINT64_MAX) {
    uint64_t end;
    if (place_.waiting_since.load(std::memory_order_relaxed) != 0) {
      end = count_wait(last);
    } else {
      end = now_ns();
    }
    trace_.record(TraceKind::kWaitTicket, mark_, end);
    mark_ = end;
  }

 private:
  // Returns the time. Read after the mark is gone, so that no reader has counted more of the wait
  // than this.
  uint64_t count_wait(uint64_t last) {
    const uint64_t since = place_.waiting_since.exchange(WorkerPlace::kCounting);
    std::atomic_thread_fence(std::memory_order_release);
    const uint64_t end = now_ns();
    if (since != WorkerPlace::kCounting) {
      place_.counters.wait_ticket_ns.add_single_writer(std::max(std::min(end, last), since) -
                                                       since);
    }
    place_.waiting_since.store(0, std::memory_order_release);
    return end;
  }

  WorkerPlace& place_;
  TraceWriter trace_;
  uint64_t mark_;
  uint32_t untimed_ = 0;
  bool quick_ = false;
  Ticket ticket_;  // the last one
  uint32_t granule_ = 0;
};

// Runs one claim. False: the ticket was taken away meanwhile.
bool run_claim(TicketRing& ring, const TicketRing::Claim& claim, TicketRunner& runner,
               BatchMemory* memory, Stopwatch& watch) {
  Slot slot(ring, claim, memory, runner);
  if (!slot.read_ticket()) return false;
  run_slot(runner, slot);
  if (slot.withdrawn()) return false;
  watch.ran(slot.ticket(), claim.granule, slot.waited_ns());
  return true;
}

}  // namespace

void run_slot(TicketRunner& runner, Slot& slot) {
  try {
    runner.run(slot.ticket(), slot);
  } catch (const Error& error) {
    if (!slot.finished()) {
      if (error.code() == Code::kClosed) {
        slot.finish_inline(ResultKind::kNone, 0, {});
      } else if (error.code() == Code::kOutOfMemory) {
        slot.finish_inline(ResultKind::kNoSpace, 0, bytes_of(error.what()));
      } else {
        slot.finish_inline(ResultKind::kBroken, 0, bytes_of(packet_of(error)));
      }
    }
  } catch (const std::bad_alloc&) {
    if (!slot.finished())
      slot.finish_inline(ResultKind::kNoSpace, 0, bytes_of("no memory is left"));
  } catch (const std::exception& error) {
    if (!slot.finished()) {
      const Error broken(Code::kInternal, "worker", error.what());
      slot.finish_inline(ResultKind::kBroken, 0, bytes_of(packet_of(broken)));
    }
  }
}

Error error_in(const Task& task) {
  std::string_view packet = text_in(task);
  if (packet.size() < 2) return {Code::kDataLoss, "worker", "an error without its text"};
  const auto code = static_cast<Code>(packet[0]);
  const auto length = static_cast<uint8_t>(packet[1]);
  packet.remove_prefix(2);
  return {code, std::string(packet.substr(0, length)),
          std::string(packet.substr(std::min<size_t>(length, packet.size())))};
}

void serve(TicketRing& ring, uint32_t worker, TicketRunner& runner, BatchMemory* memory) {
  WorkerPlace& place = ring.place(worker);
  const Serving serving(place);
  Stopwatch watch(place);
  RingWorker end(ring, worker);
  TicketRing::Claim claim;
  while (!ring.closed() && !runner.ended()) {
    if (runner.wanted()) {
      place.waiting_since.store(watch.settle());
      runner.give_way();
      watch.waited();
    }
    if (!end.spare() && end.claim(claim)) {
      if (!run_claim(ring.lane(claim.lane), claim, runner, memory, watch)) return;
      continue;
    }
    const uint64_t since = watch.settle();
    runner.before_wait();
    end.wait(since);
    runner.after_wait();
    // Past the last batch there was nothing to wait for.
    watch.waited(ring.closed() ? ring.consumer().last_ns.get() : UINT64_MAX);
    runner.catch_up();
  }
}

void serve_entry(TicketRing& ring, uint32_t worker, uint64_t seq, TicketRunner& runner,
                 BatchMemory* memory) {
  Stopwatch watch(ring.place(worker));
  RingWorker end(ring, worker);
  TicketRing::Claim claim;
  while (end.claim_of(seq, claim)) {
    if (!run_claim(ring, claim, runner, memory, watch)) return;
  }
}

}  // namespace penstock
