#include "penstock/observe/advice.h"

#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/observe/analysis_terms.h"

namespace penstock {
namespace {

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

}  // namespace

bool avoidable(CopyReason reason) { return remedy_of(reason) != nullptr; }

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

}  // namespace penstock
