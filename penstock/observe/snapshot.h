#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/observe/counters.h"
#include "penstock/observe/latency_histogram.h"
#include "penstock/observe/live.h"
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

// A stream of a device: a lane of the timeline.
struct DeviceSnapshot {
  std::string name;  // "cuda:0 copies"
  std::vector<TraceEvent> trace;
};

// The name of the stage that stands for handing batches over to the consumer.
inline constexpr std::string_view kHandOverStage = "hand-over";

// The figures of a stage of the chain so far.
struct StageSnapshot {
  std::string name;  // "map(decode)"
  uint64_t ns = 0;   // its own, without its inputs'; summed over all threads that ran it
  uint64_t rows = 0;
};
// The stages that did any work, from the source on. `titles`: the names of all stages, in order.
inline std::vector<StageSnapshot> stages_of(const StageFigures& figures,
                                            std::span<const std::string> titles) {
  std::vector<StageSnapshot> stages;
  for (size_t i = 0; i < kStages && i < titles.size(); ++i) {
    if (figures[i].ns == 0 && figures[i].rows == 0) continue;
    const bool sum = i + 1 == kStages && titles.size() > kStages;
    stages.push_back(
        {titles[i] + (sum ? " and all after it" : ""), figures[i].ns, figures[i].rows});
  }
  return stages;
}

// What a live stream has beside the consumer's figures, whose batches are those that were taken
// from the queue, and whose samples are messages.
struct LiveSnapshot {
  uint64_t received = 0;
  uint64_t dropped = 0;
  uint64_t queued = 0;    // now
  LatencyHistogram ages;  // of messages, when their predictions were made
  BatchSizes batch_sizes{};
  uint64_t largest_batch = 0;
  std::vector<LiveInterval> history;
};

// A copy of all counters and traces of a feed at one moment: plain values, no pointers into the
// feed. Reports, analysis and stats() are made from a snapshot alone.
struct Snapshot {
  // What was run.
  std::string title;            // "MySequence"
  std::string mode = "inline";  // "inline", "threads", "processes"
  uint64_t batch_size = 0;      // samples; 0: an item is a whole batch
  uint64_t queue_size = 0;      // batches
  uint64_t active_workers = 0;  // workers that are not parked; 0: all
  uint64_t max_bytes = 0;
  uint64_t cores = 0;   // that this process may use; 0: unknown
  bool pulled = false;  // the source is a generator, which one worker at a time advances
  std::vector<std::pair<std::string, std::string>> facts;  // further rows: "start method", ...

  uint64_t taken_ns = 0;  // the monotonic clock when this was taken
  ConsumerFigures consumer{};
  std::vector<TraceEvent> consumer_trace;
  std::vector<DeviceSnapshot> devices;
  std::vector<WorkerSnapshot> workers;
  std::vector<StageSnapshot> stages;         // of the workers' chain
  std::vector<StageSnapshot> stream_stages;  // run by one thread, ahead of the workers
  std::vector<DepthSample> depth;
  std::optional<LiveSnapshot> live;  // of a live stream, which has no workers
  std::vector<LostItem> losses;
  uint64_t losses_left_out = 0;  // further losses, not listed
};

}  // namespace penstock
