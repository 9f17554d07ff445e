// The cost of counting and tracing per batch: the calls that a worker and the consumer make for
// each ticket, in a loop. Prints nanoseconds of worker and consumer: first with tickets so fast
// that the clock is read once for kUntimed tickets, then with tickets that are timed one by one and
// are too long for their events to be merged.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "penstock/base/clock.h"
#include "penstock/observe/counters.h"
#include "penstock/observe/trace.h"

namespace penstock {
namespace {

constexpr uint64_t kRounds = 2'000'000;

// The shortest time of a round. `spacing` is the time between two readings of the clock in a real
// run, which determines whether the trace merges events.
template <class Round>
double best_ns(Round round) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    uint64_t begin = now_ns();
    for (uint64_t k = 0; k < kRounds; ++k) round(k);
    best = std::min(best, static_cast<double>(now_ns() - begin) / kRounds);
  }
  return best;
}

struct Worker {
  WorkerCounters counters{};
  std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
  TraceWriter trace{ring.get()};
  uint64_t skew = 0;
  uint64_t mark = now_ns();
  uint32_t untimed = 0;

  // As workers/ticket_runner.cc does after each ticket, and the hand-over for its one array.
  void ticket(uint64_t step, uint64_t spacing) {
    counters.tickets.add_single_writer();
    counters.samples.add_single_writer();
    counters.bytes.add_single_writer(4096);
    count_avoided_copy(counters, 4096);
    if (spacing == 0 && ++untimed < kUntimed) return;
    untimed = 0;
    skew += spacing;
    uint64_t end = now_ns() + skew;
    counters.busy_ns.add_single_writer(end - mark);
    trace.record(TraceKind::kUser, mark, end, 0, step, 0);
    mark = end;
  }
};

struct Consumer {
  ConsumerCounters counters{};
  std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
  TraceWriter trace{ring.get()};
  uint64_t skew = 0;
  uint64_t given = now_ns();
  uint32_t untimed = 0;

  // As pipeline/scheduler/scheduler.cc does for each batch.
  void batch(uint64_t step, uint64_t spacing) {
    counters.delivered.add_single_writer();
    counters.samples.add_single_writer();
    counters.bytes.add_single_writer(4096);
    if (spacing == 0 && ++untimed < kUntimed) return;
    untimed = 0;
    skew += spacing;
    uint64_t asked = now_ns() + skew;
    counters.busy_ns.add_single_writer(asked - given);
    trace.record(TraceKind::kConsumerBusy, given, asked, 0, step);
    skew += spacing;
    given = now_ns() + skew;
    counters.last_ns.set(given);
    counters.wait_ns.add_single_writer(given - asked);
    trace.record(TraceKind::kConsumerWait, asked, given, 0, step);
  }
};

}  // namespace
}  // namespace penstock

int main() {
  using namespace penstock;
  Worker small_items, large_items;
  Consumer small_batches, large_batches;
  std::printf("%.1f", best_ns([&](uint64_t k) { small_items.ticket(k, 0); }));
  std::printf(" %.1f", best_ns([&](uint64_t k) { small_batches.batch(k, 0); }));
  std::printf(" %.1f", best_ns([&](uint64_t k) { large_items.ticket(k, 10'000'000); }));
  std::printf(" %.1f\n", best_ns([&](uint64_t k) { large_batches.batch(k, 10'000'000); }));
}
