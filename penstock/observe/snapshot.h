#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/observe/counters.h"
#include "penstock/observe/depth.h"
#include "penstock/observe/trace.h"

namespace penstock {

struct LostItem {
  uint64_t epoch = 0;
  uint64_t index = 0;
  std::string reason;  // untrusted text: may be anything that user code raised
};

struct WorkerSnapshot {
  std::string name;  // "worker 0"
  std::string kind;  // "inline", "thread", "process"
  int64_t pid = 0;   // process id, or thread id; 0: unknown
  WorkerFigures figures{};
  std::vector<TraceEvent> trace;
};

// The stage that handing batches over to the consumer is counted as.
inline constexpr std::string_view kHandOverStage = "hand-over";

// What a stage of the chain did so far.
struct StageSnapshot {
  std::string name;  // "map(decode)"
  uint64_t ns = 0;   // its own, without its inputs'; of all that ran it together
  uint64_t rows = 0;
};
// Those that did anything, from the source on. `titles`: of the chain's stages, by their places.
std::vector<StageSnapshot> stages_of(const StageFigures& figures,
                                     std::span<const std::string> titles);

// A copy of everything that is known about a feed at one moment: plain values, no pointers into it.
// Reports, analysis and stats() are made from this and nothing else.
struct Snapshot {
  // What was run.
  std::string title;            // "MySequence"
  std::string mode = "inline";  // "inline", "threads", "processes"
  uint64_t batch_size = 0;      // samples; 0: an item is a whole batch
  uint64_t queue_size = 0;      // batches
  uint64_t active_workers = 0;  // that are not parked; 0: all
  uint64_t max_bytes = 0;
  uint64_t cores = 0;   // that this process may use; 0: unknown
  bool pulled = false;  // the items are a generator's: each is pulled by one worker at a time
  std::vector<std::pair<std::string, std::string>> facts;  // further rows: "start method", ...

  uint64_t taken_ns = 0;  // the monotonic clock when this was taken
  ConsumerFigures consumer{};
  std::vector<TraceEvent> consumer_trace;
  std::vector<WorkerSnapshot> workers;
  std::vector<StageSnapshot> stages;         // of the workers' chain
  std::vector<StageSnapshot> stream_stages;  // those that one thread goes through, ahead of them
  std::vector<DepthSample> depth;
  std::vector<LostItem> losses;
  uint64_t losses_left_out = 0;  // beyond those listed
};

}  // namespace penstock
