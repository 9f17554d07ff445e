#include "penstock/observe/analysis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "penstock/observe/advice.h"

namespace penstock {
namespace {

constexpr double kMajorShare = 0.5;
// Waking a thread takes about 40 microseconds. So a consumer of batches that take less than
// kHandOverCostMs waits no longer than this for one.
constexpr double kWakeUpCostMs = 0.1;

std::string millis(double ms) {
  char text[32];
  if (ms >= 1000) {
    std::snprintf(text, sizeof text, "%.2f s", ms / 1000);
  } else if (ms >= 0.1) {
    std::snprintf(text, sizeof text, "%.*f ms", ms < 10 ? 2 : 1, ms);
  } else {
    std::snprintf(text, sizeof text, "%.1f us", ms * 1000);
  }
  return text;
}

// How many batches the workers made, including those not delivered yet. Several tickets may make
// one batch.
double batches_made(const Snapshot& snapshot, const WorkerFigures& total) {
  const auto delivered = static_cast<double>(snapshot.consumer.delivered);
  if (total.samples > 0 && snapshot.consumer.samples > 0) {
    return delivered * static_cast<double>(total.samples) /
           static_cast<double>(snapshot.consumer.samples);
  }
  return snapshot.batch_size == 0 && total.tickets > 0 ? static_cast<double>(total.tickets)
                                                       : delivered;
}

// The hand-over time of all workers. Like every stage's time, it is extrapolated from samples.
uint64_t hand_over_of(const Snapshot& snapshot) {
  const auto found = std::ranges::find(snapshot.stages, kHandOverStage, &StageSnapshot::name);
  return found == snapshot.stages.end() ? 0 : found->ns;
}

uint64_t sum_of(const std::vector<StageSnapshot>& stages) {
  uint64_t ns = 0;
  for (const StageSnapshot& stage : stages) ns += stage.ns;
  return ns;
}

// The consumer's waiting time without the wait for the first batch; all of it if the run after that
// batch was short.
uint64_t steady_wait_ns(const ConsumerFigures& c) {
  const uint64_t later = c.wait_ns - std::min(c.first_wait_ns, c.wait_ns);
  return later + c.busy_ns < c.first_wait_ns ? c.wait_ns : later;
}

Bottleneck find_inline(const Analysis& a) {
  return a.steady_wait_share < kNegligibleShare ? Bottleneck::kConsumer : Bottleneck::kUser;
}

// A busy model keeps up as long as its batches can grow.
Bottleneck find_live(const LiveSnapshot& live, uint64_t max_batch, const Analysis& a) {
  const bool busy = a.wait_share < kNegligibleShare;
  if (live.dropped > 0 || (busy && live.largest_batch >= max_batch)) return Bottleneck::kConsumer;
  return busy ? Bottleneck::kBalanced : Bottleneck::kSource;
}

Bottleneck find_bottleneck(const Snapshot& snapshot, const Analysis& a) {
  const ConsumerFigures& c = snapshot.consumer;
  if (c.delivered == 0 || c.wait_ns + c.busy_ns == 0) return Bottleneck::kUnknown;
  if (snapshot.live) return find_live(*snapshot.live, snapshot.batch_size, a);
  if (is_inline(snapshot)) return find_inline(a);
  const double idle = a.wait_ticket_share + a.wait_slot_share;
  if (a.steady_wait_share < kNegligibleShare) {
    return idle > 0.25 ? Bottleneck::kConsumer : Bottleneck::kBalanced;
  }
  const double busy = a.busy_share + a.hand_over_share;
  if (busy + idle == 0) return Bottleneck::kUnknown;
  // The consumer waits, so the workers are slow, unless they wait as well.
  if (a.wait_slot_share > kMajorShare ||
      (idle > kMajorShare / 2 && a.stream_share <= kMajorShare && budget_below_workers(snapshot))) {
    return Bottleneck::kMemory;
  }
  const double wait_ms =
      ratio(static_cast<double>(steady_wait_ns(c)) / 1e6, static_cast<double>(c.delivered));
  if (a.work_ms < kHandOverCostMs && wait_ms < kWakeUpCostMs) return Bottleneck::kTooSmall;
  if (a.stream_share > std::max(kMajorShare, busy)) return Bottleneck::kStream;
  if (idle > kMajorShare) {
    const bool source = snapshot.pulled || !a.stream.empty() || short_queue(snapshot);
    return source || a.steady_wait_share > kMajorShare ? Bottleneck::kSource
                                                       : Bottleneck::kConsumer;
  }
  return a.hand_over_share > a.busy_share ? Bottleneck::kHandOver : Bottleneck::kUser;
}

std::string inline_verdict(const Snapshot& snapshot, const Analysis& a) {
  const std::string made = "the consumer makes each batch itself, in " + millis(a.work_ms);
  const StageTime* stage = slowest_inline(a);
  if (stage == nullptr) return made + ".";
  const uint64_t all = sum_of(snapshot.stages) + sum_of(snapshot.stream_stages);
  return made + ", and " +
         percent(ratio(static_cast<double>(stage->total_ns), static_cast<double>(all))) +
         " of that is the stage " + stage->name + ".";
}

std::string live_verdict(const Snapshot& snapshot, const Analysis& a) {
  const LiveSnapshot& live = *snapshot.live;
  if (a.bottleneck == Bottleneck::kUnknown) return "No message has been trained on.";
  const std::string waited = "The model waited for messages " + percent(a.wait_share) +
                             " of the time; half of them were predicted within " +
                             millis(static_cast<double>(live.ages.quantile_ns(0.5)) / 1e6);
  if (a.bottleneck != Bottleneck::kConsumer)
    return waited + ": the model keeps up with the stream.";
  if (live.dropped == 0) return waited + ": the training step is the bottleneck.";
  const double share = ratio(static_cast<double>(live.dropped), static_cast<double>(live.received));
  return waited +
         ". Messages come faster than the model learns, at least at times: " + percent(share) +
         " of them were dropped.";
}

std::string verdict_of(const Snapshot& snapshot, const Analysis& a) {
  if (snapshot.live) return live_verdict(snapshot, a);
  const uint64_t workers = snapshot.workers.size();
  const bool apart = a.wait_share - a.steady_wait_share > 0.01;
  const std::string waited = "The model waited " + percent(a.steady_wait_share) + " of the time" +
                             (apart ? " after the first batch" : "");
  switch (a.bottleneck) {
    case Bottleneck::kUnknown:
      return "The run was too short to tell what takes the time.";
    case Bottleneck::kBalanced:
      return waited + ", and the workers are busy: making batches and using them keep pace.";
    case Bottleneck::kConsumer:
      if (is_inline(snapshot)) return waited + ": the training step is the bottleneck.";
      return waited + ": the training step is the bottleneck, and " +
             (workers == 1 ? std::string("the worker is") : "the workers are") + " idle " +
             percent(a.wait_ticket_share + a.wait_slot_share) + " of it.";
    case Bottleneck::kUser:
      if (is_inline(snapshot)) return waited + ": " + inline_verdict(snapshot, a);
      if (const StageTime* stage = slowest(a.chain)) {
        return waited + ": the stage " + stage->name + " takes " + percent(stage->share) +
               " of the workers' time, " + millis(stage->per_batch_ms) + " per batch over " +
               plural(workers, "worker") + ".";
      }
      return waited + ": user code takes " +
             millis(a.work_ms * ratio(a.busy_share, a.busy_share + a.hand_over_share)) +
             " per batch over " + plural(workers, "worker") + ".";
    case Bottleneck::kTooSmall:
      return waited + ": making a batch takes " + millis(a.work_ms) +
             ", less than it takes to hand one over from a worker.";
    case Bottleneck::kHandOver:
      return waited + ": copying batches out of the workers takes " + percent(a.hand_over_share) +
             " of their time, more than making them.";
    case Bottleneck::kMemory:
      if (budget_below_workers(snapshot)) {
        return waited + " while the workers had nothing to do " +
               percent(a.wait_ticket_share + a.wait_slot_share) +
               " of theirs: max_bytes holds fewer batches at a time than there are "
               "workers, only " +
               std::to_string(batches_in_budget(snapshot)) + ".";
      }
      return waited + " while the workers waited for memory " + percent(a.wait_slot_share) +
             " of theirs: max_bytes is the limit.";
    case Bottleneck::kSource:
      return waited + " while the workers had nothing to do " + percent(a.wait_ticket_share) +
             " of theirs: " +
             (snapshot.pulled || !a.stream.empty()
                  ? "the source provides work too slowly, or the run was too short."
                  : "batch times vary, the queue is too short, or the run was too short.");
    case Bottleneck::kStream: {
      const StageTime* stage = slowest(a.stream);
      return waited + " while the workers had nothing to do " + percent(a.wait_ticket_share) +
             " of theirs: one thread reads the stream, and the stage " + stage->name + " takes " +
             percent(stage->share) + " of its time.";
    }
  }
  return {};
}

}  // namespace

std::string_view name_of(Bottleneck bottleneck) {
  switch (bottleneck) {
    case Bottleneck::kBalanced:
      return "balanced";
    case Bottleneck::kConsumer:
      return "training step";
    case Bottleneck::kUser:
      return "user code";
    case Bottleneck::kTooSmall:
      return "batches too small";
    case Bottleneck::kHandOver:
      return "hand-over";
    case Bottleneck::kMemory:
      return "memory";
    case Bottleneck::kSource:
      return "source";
    case Bottleneck::kStream:
      return "stream";
    case Bottleneck::kUnknown:
      break;
  }
  return "unknown";
}

Analysis analyse(const Snapshot& snapshot) {
  Analysis a;
  for (const WorkerSnapshot& worker : snapshot.workers) {
    a.total += worker.figures;
  }
  const ConsumerFigures& c = snapshot.consumer;
  const WorkerFigures& w = a.total;

  if (c.last_ns > c.first_ns && c.first_ns != 0) {
    a.seconds = static_cast<double>(c.last_ns - c.first_ns) / 1e9;
  }
  a.batches_per_second = ratio(static_cast<double>(c.delivered), a.seconds);
  a.samples_per_second = ratio(static_cast<double>(c.samples), a.seconds);
  a.bytes_per_second = ratio(static_cast<double>(c.bytes), a.seconds);

  const auto consumer_ns = static_cast<double>(c.wait_ns + c.busy_ns);
  const auto worker_ns = static_cast<double>(w.busy_ns + w.wait_ticket_ns + w.wait_slot_ns);
  const uint64_t hand_over_ns = std::min(hand_over_of(snapshot), w.busy_ns);
  const double made = batches_made(snapshot, w);
  const auto stage = [](std::string name, uint64_t ns, double of_ns, double batches) {
    const auto total = static_cast<double>(ns);
    return StageTime{std::move(name), ns, ratio(total, of_ns), ratio(total / 1e6, batches)};
  };
  const auto delivered = static_cast<double>(c.delivered);
  a.consumer_stages = {stage(snapshot.live ? "waiting for messages" : "waiting for a batch",
                             c.wait_ns, consumer_ns, delivered),
                       stage("training step", c.busy_ns, consumer_ns, delivered)};
  a.worker_stages = {stage("user code", w.busy_ns - hand_over_ns, worker_ns, made),
                     stage(std::string(kHandOverStage), hand_over_ns, worker_ns, made),
                     stage("waiting for a ticket", w.wait_ticket_ns, worker_ns, made),
                     stage("waiting for memory", w.wait_slot_ns, worker_ns, made)};
  const auto chain = [&](const std::vector<StageSnapshot>& stages, double batches) {
    double all = 0;
    for (const StageSnapshot& s : stages) all += static_cast<double>(s.ns);
    std::vector<StageTime> times;
    for (const StageSnapshot& s : stages) times.push_back(stage(s.name, s.ns, all, batches));
    return times;
  };
  a.chain = chain(snapshot.stages, made);
  a.stream = chain(snapshot.stream_stages, delivered);
  a.wait_share = a.consumer_stages[0].share;
  a.step_ms = a.consumer_stages[1].per_batch_ms;
  a.busy_share = a.worker_stages[0].share;
  a.hand_over_share = a.worker_stages[1].share;
  a.wait_ticket_share = a.worker_stages[2].share;
  a.wait_slot_share = a.worker_stages[3].share;
  a.work_ms = a.worker_stages[0].per_batch_ms + a.worker_stages[1].per_batch_ms;
  const auto steady_ns = static_cast<double>(steady_wait_ns(c));
  a.steady_wait_share = ratio(steady_ns, steady_ns + static_cast<double>(c.busy_ns));
  const auto stream_ns = static_cast<double>(sum_of(snapshot.stream_stages));
  a.stream_share = ratio(stream_ns / 1e9, a.seconds);

  uint64_t copied = 0;
  for (size_t i = 0; i < kCopyReasons; ++i) {
    copied += avoidable(static_cast<CopyReason>(i)) ? w.copies[i] : 0;
  }
  a.avoided_share =
      ratio(static_cast<double>(w.copies_avoided), static_cast<double>(w.copies_avoided + copied));

  // Left at 0 if even kMaxLoaderWorkers would be too few.
  if (a.work_ms > 0 && a.step_ms * kMaxLoaderWorkers >= a.work_ms) {
    a.workers_enough =
        std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(a.work_ms / a.step_ms)));
  }
  if (is_inline(snapshot)) a.work_ms += ratio(stream_ns / 1e6, delivered);

  a.bottleneck = find_bottleneck(snapshot, a);
  a.verdict = verdict_of(snapshot, a);
  recommend(snapshot, a);
  return a;
}

}  // namespace penstock
