#include "penstock/observe/analysis.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace penstock {
namespace {

constexpr double kLittle = 0.05;  // a share of time that nobody should care about
constexpr double kMuch = 0.5;
// Claiming a ticket, finishing it and taking its batch cost microseconds, and waking whoever sleeps
// over it some 40: no worker makes up for that with less work than this.
constexpr double kHandedOverMs = 0.01;
constexpr double kWokenMs = 0.1;  // and no consumer waits longer for such a batch alone

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %%", share > 0 && share < 0.01 ? 1 : 0, share * 100);
  return text;
}

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

std::string plural(uint64_t n, const std::string& word) {
  return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
}

// How many batches the workers made, in units of delivered batches: a batch may be made by several
// tickets, and some were made and not yet delivered.
double batches_made(const Snapshot& snapshot, const WorkerFigures& total) {
  const auto delivered = static_cast<double>(snapshot.consumer.delivered);
  if (total.samples > 0 && snapshot.consumer.samples > 0) {
    return delivered * static_cast<double>(total.samples) /
           static_cast<double>(snapshot.consumer.samples);
  }
  return snapshot.batch_size == 0 && total.tickets > 0 ? static_cast<double>(total.tickets)
                                                       : delivered;
}

// Of all workers. As the time of every stage it stands for some that was not measured.
uint64_t hand_over_of(const Snapshot& snapshot) {
  const auto found = std::ranges::find(snapshot.stages, kHandOverStage, &StageSnapshot::name);
  return found == snapshot.stages.end() ? 0 : found->ns;
}

bool in_line(const Snapshot& snapshot) { return snapshot.mode == "inline"; }

// Some workers always have nothing to do.
bool short_queue(const Snapshot& snapshot) {
  return snapshot.batch_size == 0 && snapshot.queue_size < snapshot.workers.size();
}

uint64_t sum_of(const std::vector<StageSnapshot>& stages) {
  uint64_t ns = 0;
  for (const StageSnapshot& stage : stages) ns += stage.ns;
  return ns;
}

// Of the consumer's waiting what is not for the first batch. Where little came after that one it is
// all there is to go by.
uint64_t steady_wait_ns(const ConsumerFigures& c) {
  const uint64_t later = c.wait_ns - std::min(c.first_wait_ns, c.wait_ns);
  return later + c.busy_ns < c.first_wait_ns ? c.wait_ns : later;
}

Bottleneck find_in_line(const Analysis& a) {
  return a.steady_wait_share < kLittle ? Bottleneck::kConsumer : Bottleneck::kUser;
}

Bottleneck find_bottleneck(const Snapshot& snapshot, const Analysis& a) {
  const ConsumerFigures& c = snapshot.consumer;
  if (c.delivered == 0 || c.wait_ns + c.busy_ns == 0) return Bottleneck::kUnknown;
  if (in_line(snapshot)) return find_in_line(a);
  const double idle = a.wait_ticket_share + a.wait_slot_share;
  if (a.steady_wait_share < kLittle) {
    return idle > 0.25 ? Bottleneck::kConsumer : Bottleneck::kBalanced;
  }
  const double busy = a.busy_share + a.hand_over_share;
  if (busy + idle == 0) return Bottleneck::kUnknown;
  // The consumer waits, so the workers are what is slow: unless they wait as well.
  if (a.wait_slot_share > kMuch) {
    return Bottleneck::kMemory;
  }
  const double wait_ms =
      ratio(static_cast<double>(steady_wait_ns(c)) / 1e6, static_cast<double>(c.delivered));
  if (a.work_ms < kHandedOverMs && wait_ms < kWokenMs) return Bottleneck::kTooSmall;
  if (a.stream_share > std::max(kMuch, busy)) return Bottleneck::kStream;
  if (idle > kMuch) {
    const bool source = snapshot.pulled || !a.stream.empty() || short_queue(snapshot);
    return source || a.steady_wait_share > kMuch ? Bottleneck::kSource : Bottleneck::kConsumer;
  }
  return a.hand_over_share > a.busy_share ? Bottleneck::kHandOver : Bottleneck::kUser;
}

// The stage that takes most; nullptr: there is no telling, or nothing to tell apart.
const StageTime* largest(const std::vector<StageTime>& stages) {
  const auto most = std::ranges::max_element(stages, {}, &StageTime::total_ns);
  return most == stages.end() || most->total_ns == 0 ? nullptr : &*most;
}

// The stage that takes most of what is made in line; of a stream if it is in `a.stream`.
const StageTime* largest_in_line(const Analysis& a) {
  const StageTime *chain = largest(a.chain), *stream = largest(a.stream);
  if (chain == nullptr || stream == nullptr) return chain == nullptr ? stream : chain;
  return stream->total_ns > chain->total_ns ? stream : chain;
}

std::string in_line_verdict(const Snapshot& snapshot, const Analysis& a) {
  const std::string made = "it makes each batch itself, " + millis(a.work_ms) + " at a time";
  const StageTime* stage = largest_in_line(a);
  if (stage == nullptr) return made + ".";
  const uint64_t all = sum_of(snapshot.stages) + sum_of(snapshot.stream_stages);
  return made + ", and " +
         percent(ratio(static_cast<double>(stage->total_ns), static_cast<double>(all))) +
         " of that is the stage " + stage->name + ".";
}

std::string verdict_of(const Snapshot& snapshot, const Analysis& a) {
  const uint64_t workers = snapshot.workers.size();
  const bool apart = a.wait_share - a.steady_wait_share > 0.01;
  const std::string waited = "The model waited " + percent(a.steady_wait_share) + " of the time" +
                             (apart ? " after the first batch" : "");
  switch (a.bottleneck) {
    case Bottleneck::kUnknown:
      return "Too little was run to say what takes the time.";
    case Bottleneck::kBalanced:
      return waited + ", and the workers are busy: making batches and using them keep pace.";
    case Bottleneck::kConsumer:
      if (in_line(snapshot)) return waited + ": the training step is the bottleneck.";
      return waited + ": the training step is the bottleneck, and " +
             (workers == 1 ? std::string("the worker is") : "the workers are") + " idle " +
             percent(a.wait_ticket_share + a.wait_slot_share) + " of it.";
    case Bottleneck::kUser:
      if (in_line(snapshot)) return waited + ": " + in_line_verdict(snapshot, a);
      if (const StageTime* stage = largest(a.chain)) {
        return waited + ": the stage " + stage->name + " takes " + percent(stage->share) +
               " of the workers' time, " + millis(stage->per_batch_ms) + " per batch over " +
               plural(workers, "worker") + ".";
      }
      return waited + ": user code takes " +
             millis(a.work_ms * ratio(a.busy_share, a.busy_share + a.hand_over_share)) +
             " per batch over " + plural(workers, "worker") + ".";
    case Bottleneck::kTooSmall:
      return waited + ": making a batch takes " + millis(a.work_ms) +
             ", less than handing one over from a worker.";
    case Bottleneck::kHandOver:
      return waited + ": copying batches out of the workers takes " + percent(a.hand_over_share) +
             " of their time, more than making them.";
    case Bottleneck::kMemory:
      return waited + " while the workers waited for room " + percent(a.wait_slot_share) +
             " of theirs: the memory bound is what holds them back.";
    case Bottleneck::kSource:
      return waited + " while the workers had nothing to do " + percent(a.wait_ticket_share) +
             " of theirs: " +
             (snapshot.pulled || !a.stream.empty()
                  ? "the source hands out work too slowly, or the run was too short."
                  : "batches vary, the queue is too short, or the run was.");
    case Bottleneck::kStream: {
      const StageTime* stage = largest(a.stream);
      return waited + " while the workers had nothing to do " + percent(a.wait_ticket_share) +
             " of theirs: one thread goes through the stream, and the stage " + stage->name +
             " takes " + percent(stage->share) + " of its time.";
    }
  }
  return {};
}

std::string cheaper(const StageTime* stage) {
  return "make " + (stage != nullptr ? stage->name : std::string("__getitem__")) + " cheaper";
}

std::string put_more_into_a_batch(const Snapshot& snapshot) {
  return std::string("Put more into a batch: ") +
         (snapshot.batch_size == 0 ? "let an item be many samples, or give batch_size"
                                   : "a larger batch_size");
}

// What makes a stream's stage quicker: workers run what is not in the stream.
std::string remedy_for_stream(const StageTime& stage) {
  const auto is = [&](std::string_view name) {
    return stage.name.starts_with(std::string(name) + "(");
  };
  if (is("generator")) {
    return "Let " + stage.name +
           " give only what is quickly told, such as names, and make the rest of it in a map "
           "behind "
           "it, which the workers run; or give the source a length and __getitem__, and they read "
           "it themselves.";
  }
  if (is("filter") || is("take_while") || is("unique")) {
    return "Make " + stage.name +
           " cheaper, or put what takes long into a map in front of it, which the workers run.";
  }
  if (is("scan") || is("flat_map") || is("interleave")) {
    return "Make " + stage.name +
           " cheaper, or put what takes long into a map behind it, which the workers run.";
  }
  return "Make " + stage.name +
         " cheaper: no worker can help the one thread that goes through the stream.";
}

constexpr const char* kPulled =
    "A generator is pulled by one worker at a time: give the source a length and __getitem__ if it "
    "can have them.";
constexpr const char* kBeyondCores =
    " More workers than cores help only where they wait, for files or a network, and do not "
    "compute.";

// So many as keep up, or as this machine has cores for.
void recommend_workers(const Snapshot& snapshot, Analysis& a) {
  const uint64_t workers = in_line(snapshot) ? 0 : snapshot.workers.size();
  const uint64_t enough = a.workers_enough, cores = snapshot.cores;
  const auto use = [&](uint64_t n) {
    return "use " + plural(n, "worker") +
           (workers == 0 ? std::string() : " instead of " + std::to_string(workers));
  };
  const std::string less_work = cheaper(largest(a.chain));
  const std::string needed = ": to keep up as it is takes " + plural(enough, "worker") +
                             ", and this machine has " + plural(cores, "core") + ".";
  std::string advice;
  if (cores == 0 || enough <= cores) {
    advice = use(enough) + ", or " + less_work + ".";
  } else if (workers < cores) {
    advice = use(cores) + ", one for each core, and " + less_work + needed;
  } else {
    advice = less_work + needed + kBeyondCores;
  }
  advice.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(advice.front())));
  a.recommendations.push_back(std::move(advice));
}

void recommend_in_line(const Snapshot& snapshot, Analysis& a) {
  auto& out = a.recommendations;
  if (a.work_ms < kHandedOverMs) {
    out.push_back(put_more_into_a_batch(snapshot) + "; workers would cost more than they bring.");
    return;
  }
  const StageTime* slowest = largest_in_line(a);
  if (slowest != nullptr && slowest == largest(a.stream)) {
    const bool theirs = slowest->name.starts_with("map(") || slowest->name.starts_with("source(");
    out.push_back(
        "Use workers: a thread of its own then goes through the stream while the model trains, and "
        "what is costly in front of its stages is made by all workers.");
    out.push_back(theirs ? "Or make " + slowest->name + " cheaper." : remedy_for_stream(*slowest));
  } else if (a.workers_enough == 0) {
    out.push_back("Use workers: the batches are then made by several at once.");
  } else {
    recommend_workers(snapshot, a);
  }
}

void recommend_for_user_code(const Snapshot& snapshot, Analysis& a) {
  if (in_line(snapshot)) return recommend_in_line(snapshot, a);
  const uint64_t workers = snapshot.workers.size();
  auto& out = a.recommendations;
  if (snapshot.pulled) return out.push_back(kPulled);  // more workers would wait for their turn
  if (a.workers_enough == 0) {
    out.push_back(
        "The consumer does next to nothing between batches, so it will always wait: this is the "
        "rate at which batches can be made.");
    const bool cores_left = workers < snapshot.cores;
    out.push_back(
        "To raise it, " +
        (cores_left ? "use up to " + plural(snapshot.cores, "worker") + ", one for each core, or "
                    : std::string()) +
        cheaper(largest(a.chain)) + "." + (cores_left ? "" : kBeyondCores));
  } else if (a.workers_enough > workers) {
    recommend_workers(snapshot, a);
  } else {
    out.push_back(
        "There are enough workers for the average batch, but batches vary: a larger "
        "max_queue_size evens them out.");
  }
  if (snapshot.mode == "threads") {
    out.push_back(
        "Threads share Python's interpreter lock: if the time goes to Python rather than to NumPy "
        "or files, use_multiprocessing=True makes batches in parallel.");
  }
}

// Null for copies that are as they should be: rows and small arrays never could travel by address.
const char* remedy_of(CopyReason reason) {
  switch (reason) {
    case CopyReason::kNotOwned:
      return "the dataset returned views of an array that lives on: return a fresh array to avoid "
             "it";
    case CopyReason::kReferenced:
      return "the dataset keeps a reference to what it returned: drop it to avoid the copy";
    case CopyReason::kForeign:
      return "the arrays were allocated by another library: return NumPy's own arrays to avoid it";
    case CopyReason::kSparse:
      return "the dataset returned small pieces of large arrays: return copies of the pieces, or "
             "whole arrays";
    case CopyReason::kPickled:
      return "the dataset returned objects that are not arrays, which are pickled: return arrays";
    case CopyReason::kNoRoom:
      return "the arena was full: raise max_bytes, or lower max_queue_size";
    case CopyReason::kSmall:
    case CopyReason::kRow:
    case CopyReason::kCount:
      break;
  }
  return nullptr;
}

void recommend_for_copies(Analysis& a) {
  uint64_t bytes = a.total.bytes_avoided;
  uint64_t arrays = a.total.copies_avoided;
  for (size_t i = 0; i < kCopyReasons; ++i) {
    if (remedy_of(static_cast<CopyReason>(i)) != nullptr) {
      bytes += a.total.bytes_copied[i];
      arrays += a.total.copies[i];
    }
  }
  for (size_t i = 0; i < kCopyReasons; ++i) {
    const char* remedy = remedy_of(static_cast<CopyReason>(i));
    const double of_bytes =
        ratio(static_cast<double>(a.total.bytes_copied[i]), static_cast<double>(bytes));
    if (remedy == nullptr || of_bytes < kLittle) {
      continue;
    }
    const double of_arrays =
        ratio(static_cast<double>(a.total.copies[i]), static_cast<double>(arrays));
    a.recommendations.push_back("Copies: " + percent(of_arrays) + " of the arrays (" +
                                percent(of_bytes) + " of their bytes) were copied because " +
                                remedy + ".");
  }
}

void recommend(const Snapshot& snapshot, Analysis& a) {
  const uint64_t workers = snapshot.workers.size();
  const uint64_t active = snapshot.active_workers == 0 ? workers : snapshot.active_workers;
  auto& out = a.recommendations;
  switch (a.bottleneck) {
    case Bottleneck::kConsumer:
      if (a.workers_enough > 0 && a.workers_enough < active) {
        out.push_back(plural(a.workers_enough, "worker") + " would do instead of " +
                      std::to_string(active) +
                      "; the cores that this frees may be of use to the training step.");
      }
      break;
    case Bottleneck::kUser:
      recommend_for_user_code(snapshot, a);
      break;
    case Bottleneck::kTooSmall:
      out.push_back(put_more_into_a_batch(snapshot) +
                    ". More workers bring nothing, and workers=0 may be faster.");
      break;
    case Bottleneck::kMemory:
      out.push_back(
          "Raise max_bytes or lower batch_size; batches that the training code holds on to also "
          "take up room.");
      break;
    case Bottleneck::kSource:
      if (short_queue(snapshot)) {
        out.push_back("max_queue_size is " + std::to_string(snapshot.queue_size) +
                      ", less than the " + plural(workers, "worker") +
                      ", so some always have nothing to do: make it twice their number.");
        break;
      }
      if (snapshot.pulled) out.push_back(kPulled);
      out.push_back("With few or uneven batches, a larger max_queue_size helps.");
      break;
    case Bottleneck::kStream:
      out.push_back(remedy_for_stream(*largest(a.stream)));
      break;
    case Bottleneck::kHandOver:
    case Bottleneck::kBalanced:
    case Bottleneck::kUnknown:
      break;
  }
  recommend_for_copies(a);
  const ConsumerFigures& c = snapshot.consumer;
  if (c.restarts > 0) {
    out.push_back(plural(c.restarts, "worker") + (c.restarts == 1 ? " was" : " were") +
                  " replaced after dying: look for a memory limit or a crash in a library that the "
                  "dataset uses. No batch was lost by it.");
  }
  if (c.timeouts > 0) {
    out.push_back(plural(c.timeouts, "ticket") +
                  " took longer than the timeout: look for what the dataset waits for.");
  }
  if (c.skipped + c.replaced > 0) {
    out.push_back("Errors cost " + plural(c.skipped + c.replaced, "sample") + " (" +
                  std::to_string(c.skipped) + " skipped, " + std::to_string(c.replaced) +
                  " replaced): see the losses.");
  }
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
  a.consumer_stages = {stage("waiting for a batch", c.wait_ns, consumer_ns, delivered),
                       stage("training step", c.busy_ns, consumer_ns, delivered)};
  a.worker_stages = {stage("user code", w.busy_ns - hand_over_ns, worker_ns, made),
                     stage(std::string(kHandOverStage), hand_over_ns, worker_ns, made),
                     stage("waiting for a ticket", w.wait_ticket_ns, worker_ns, made),
                     stage("waiting for room", w.wait_slot_ns, worker_ns, made)};
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
    copied += remedy_of(static_cast<CopyReason>(i)) != nullptr ? w.copies[i] : 0;
  }
  a.avoided_share =
      ratio(static_cast<double>(w.copies_avoided), static_cast<double>(w.copies_avoided + copied));

  // A consumer for which the most workers are too few has no pace to keep up with.
  if (a.work_ms > 0 && a.step_ms * kMostWorkers >= a.work_ms) {
    a.workers_enough =
        std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(a.work_ms / a.step_ms)));
  }
  if (in_line(snapshot)) a.work_ms += ratio(stream_ns / 1e6, delivered);

  a.bottleneck = find_bottleneck(snapshot, a);
  a.verdict = verdict_of(snapshot, a);
  recommend(snapshot, a);
  return a;
}

}  // namespace penstock
