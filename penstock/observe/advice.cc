#include "penstock/observe/advice.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {
namespace {

std::string cheaper(const StageTime* stage) {
  return "make " + (stage != nullptr ? stage->name : std::string("__getitem__")) + " cheaper";
}

std::string enlarge_batches(const Snapshot& snapshot) {
  return std::string("Make batches larger: ") +
         (snapshot.batch_size == 0 ? "let an item be many samples, or give batch_size"
                                   : "a larger batch_size");
}

// How to make a stage of a stream faster: work outside the stream runs in the workers.
std::string remedy_for_stream(const StageTime& stage) {
  const auto is = [&](std::string_view name) {
    return stage.name.starts_with(std::string(name) + "(");
  };
  if (is("generator")) {
    return "Let " + stage.name +
           " yield cheap values such as names, and do the expensive work in a map after it, which "
           "runs in the workers; or give the source a length and __getitem__, so that the workers "
           "read it.";
  }
  if (is("filter") || is("take_while") || is("unique")) {
    return "Make " + stage.name +
           " cheaper, or move expensive work into a map before it, which runs in the workers.";
  }
  if (is("scan") || is("flat_map") || is("interleave")) {
    return "Make " + stage.name +
           " cheaper, or move expensive work into a map after it, which runs in the workers.";
  }
  return "Make " + stage.name +
         " cheaper: no worker can help the one thread that reads the stream.";
}

constexpr const char* kSerialGenerator =
    "Only one worker at a time can advance a generator: give the source a length and __getitem__ "
    "if "
    "possible.";
constexpr const char* kMoreThanCores =
    " More workers than cores help only if they wait for files or a network instead of "
    "computing.";

// The number of workers that keep up, at most one for each core.
void recommend_workers(const Snapshot& snapshot, Analysis& a) {
  const uint64_t workers = is_inline(snapshot) ? 0 : snapshot.workers.size();
  const uint64_t enough = a.workers_enough, cores = snapshot.cores;
  const auto use = [&](uint64_t n) {
    return "use " + plural(n, "worker") +
           (workers == 0 ? std::string() : " instead of " + std::to_string(workers));
  };
  const std::string less_work = cheaper(slowest(a.chain));
  const std::string needed = ": keeping up takes " + plural(enough, "worker") +
                             ", and this machine has " + plural(cores, "core") + ".";
  std::string advice;
  if (cores == 0 || enough <= cores) {
    advice = use(enough) + ", or " + less_work + ".";
  } else if (workers < cores) {
    advice = use(cores) + ", one for each core, and " + less_work + needed;
  } else {
    advice = less_work + needed + kMoreThanCores;
  }
  advice.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(advice.front())));
  a.recommendations.push_back(std::move(advice));
}

void recommend_for_live(const Snapshot& snapshot, Analysis& a) {
  if (a.bottleneck != Bottleneck::kConsumer) return;
  if (snapshot.live->largest_batch == snapshot.batch_size) {
    a.recommendations.push_back(
        "Raise max_batch: there were batches of " + plural(snapshot.batch_size, "message") +
        ", the most that it allows, and a message of a larger batch usually costs less.");
  }
  a.recommendations.push_back(
      "Make the model's step cheaper, or let the model see fewer messages: windows with a larger "
      "step, or when_full=\"drop_oldest\" with a small max_queue, which bounds the ages.");
}

void recommend_inline(const Snapshot& snapshot, Analysis& a) {
  auto& out = a.recommendations;
  if (a.work_ms < kHandOverCostMs) {
    out.push_back(enlarge_batches(snapshot) + "; workers would cost more than they gain.");
    return;
  }
  const StageTime* stage = slowest_inline(a);
  if (stage != nullptr && stage == slowest(a.stream)) {
    const bool on_workers = stage->name.starts_with("map(") || stage->name.starts_with("source(");
    out.push_back(
        "Use workers: a separate thread then reads the stream while the model trains, and all "
        "workers "
        "share the expensive work before the stream's stages.");
    out.push_back(on_workers ? "Or make " + stage->name + " cheaper." : remedy_for_stream(*stage));
  } else if (a.workers_enough == 0) {
    out.push_back("Use workers, which make several batches at once.");
  } else {
    recommend_workers(snapshot, a);
  }
}

void recommend_for_user_code(const Snapshot& snapshot, Analysis& a) {
  if (is_inline(snapshot)) return recommend_inline(snapshot, a);
  const uint64_t workers = snapshot.workers.size();
  auto& out = a.recommendations;
  if (snapshot.pulled) return out.push_back(kSerialGenerator);  // further workers would only wait
  if (a.workers_enough == 0) {
    out.push_back(
        "The consumer does almost nothing between batches, so it will always wait: this is "
        "the rate at which batches can be made.");
    const bool cores_left = workers < snapshot.cores;
    out.push_back(
        "To raise it, " +
        (cores_left ? "use up to " + plural(snapshot.cores, "worker") + ", one for each core, or "
                    : std::string()) +
        cheaper(slowest(a.chain)) + "." + (cores_left ? "" : kMoreThanCores));
  } else if (a.workers_enough > workers) {
    recommend_workers(snapshot, a);
  } else {
    out.push_back(
        "There are enough workers for the average batch, but batch times vary: a larger "
        "max_queue_size evens them out.");
  }
  if (snapshot.mode == "threads") {
    out.push_back(
        "Threads share Python's interpreter lock: if the time goes to Python rather than to NumPy "
        "or files, use_multiprocessing=True makes batches in parallel.");
  }
}

// nullptr for expected copies: rows and small arrays are always copied.
const char* remedy_of(CopyReason reason) {
  switch (reason) {
    case CopyReason::kNotOwned:
      return "the dataset returned views of an array that it keeps: return a new array to avoid "
             "the "
             "copy";
    case CopyReason::kReferenced:
      return "the dataset keeps a reference to what it returned: drop it to avoid the copy";
    case CopyReason::kForeign:
      return "the arrays were allocated by another library: return arrays that NumPy allocated to "
             "avoid the copy";
    case CopyReason::kSparse:
      return "the dataset returned small pieces of large arrays: return copies of the pieces, or "
             "whole arrays";
    case CopyReason::kPickled:
      return "the dataset returned objects that are not arrays, which are pickled: return arrays";
    case CopyReason::kArenaFull:
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
    if (remedy == nullptr || of_bytes < kNegligibleShare) {
      continue;
    }
    const double of_arrays =
        ratio(static_cast<double>(a.total.copies[i]), static_cast<double>(arrays));
    a.recommendations.push_back("Copies: " + percent(of_arrays) + " of the arrays (" +
                                percent(of_bytes) + " of their bytes) were copied because " +
                                remedy + ".");
  }
}

}  // namespace

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %%", share > 0 && share < 0.01 ? 1 : 0, share * 100);
  return text;
}

std::string plural(uint64_t n, const std::string& word) {
  return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
}

bool is_inline(const Snapshot& snapshot) { return snapshot.mode == "inline"; }

bool short_queue(const Snapshot& snapshot) {
  return snapshot.batch_size == 0 && snapshot.queue_size < snapshot.workers.size();
}

uint64_t batches_in_budget(const Snapshot& snapshot) {
  const ConsumerFigures& c = snapshot.consumer;
  if (snapshot.max_bytes == 0 || c.bytes == 0 || c.delivered == 0) return 0;
  const double batch = static_cast<double>(c.bytes) / static_cast<double>(c.delivered);
  const double batches = static_cast<double>(snapshot.max_bytes) / batch;
  return static_cast<uint64_t>(std::clamp(batches, 1.0, 1e9));
}

bool budget_below_workers(const Snapshot& snapshot) {
  const uint64_t batches = batches_in_budget(snapshot), workers = snapshot.workers.size();
  return batches != 0 &&
         batches < (snapshot.active_workers == 0 ? workers : snapshot.active_workers);
}

const StageTime* slowest(const std::vector<StageTime>& stages) {
  const auto most = std::ranges::max_element(stages, {}, &StageTime::total_ns);
  return most == stages.end() || most->total_ns == 0 ? nullptr : &*most;
}

const StageTime* slowest_inline(const Analysis& a) {
  const StageTime *chain = slowest(a.chain), *stream = slowest(a.stream);
  if (chain == nullptr || stream == nullptr) return chain == nullptr ? stream : chain;
  return stream->total_ns > chain->total_ns ? stream : chain;
}

bool avoidable(CopyReason reason) { return remedy_of(reason) != nullptr; }

void recommend(const Snapshot& snapshot, Analysis& a) {
  if (snapshot.live) return recommend_for_live(snapshot, a);
  const uint64_t workers = snapshot.workers.size();
  const uint64_t active = snapshot.active_workers == 0 ? workers : snapshot.active_workers;
  auto& out = a.recommendations;
  switch (a.bottleneck) {
    case Bottleneck::kConsumer:
      if (a.workers_enough > 0 && a.workers_enough < active) {
        out.push_back(plural(a.workers_enough, "worker") + " would do instead of " +
                      std::to_string(active) +
                      "; the training step may use the cores that this frees.");
      }
      break;
    case Bottleneck::kUser:
      recommend_for_user_code(snapshot, a);
      break;
    case Bottleneck::kTooSmall:
      out.push_back(enlarge_batches(snapshot) +
                    ". More workers do not help, and workers=0 may be faster.");
      break;
    case Bottleneck::kMemory:
      out.push_back(
          "Raise max_bytes or lower batch_size; batches that the training code keeps also use "
          "memory.");
      break;
    case Bottleneck::kSource:
      if (short_queue(snapshot)) {
        out.push_back("max_queue_size is " + std::to_string(snapshot.queue_size) +
                      ", less than the " + plural(workers, "worker") +
                      ", so some workers are always idle: set it to twice the number of workers.");
        break;
      }
      if (snapshot.pulled) out.push_back(kSerialGenerator);
      out.push_back("If batches are few or uneven, a larger max_queue_size helps.");
      break;
    case Bottleneck::kStream:
      out.push_back(remedy_for_stream(*slowest(a.stream)));
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
                  "dataset uses. No batch was lost.");
  }
  if (c.timeouts > 0) {
    out.push_back(plural(c.timeouts, "ticket") +
                  " took longer than the timeout: find out what the dataset waits for.");
  }
  if (c.skipped + c.replaced > 0) {
    out.push_back("Errors cost " + plural(c.skipped + c.replaced, "sample") + " (" +
                  std::to_string(c.skipped) + " skipped, " + std::to_string(c.replaced) +
                  " replaced): see the losses.");
  }
}

}  // namespace penstock
