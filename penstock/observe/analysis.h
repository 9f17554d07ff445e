#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/observe/snapshot.h"

namespace penstock {

enum class Bottleneck {
  kUnknown,   // too little was run to say
  kBalanced,  // the consumer waits little, and the workers wait little
  kConsumer,  // the training step: batches are ready before they are asked for
  kUser,      // user code in the workers, or in line
  kTooSmall,  // a batch takes less time to make than to hand over
  kHandOver,  // copies on the way out of the workers
  kMemory,    // workers wait for room although the consumer waits for batches
  kSource,    // workers have nothing to do although the consumer waits for batches
  kStream,    // the one thread that goes through a stream is busier than they are
};
std::string_view name_of(Bottleneck bottleneck);

inline constexpr uint64_t kMostWorkers = 256;  // that a Loader takes

// Shares are of time, 0 to 1. Times of workers are summed over workers.
struct StageTime {
  std::string name;
  uint64_t total_ns = 0;
  double share = 0;         // of the time of that side (all workers, or the consumer)
  double per_batch_ms = 0;  // per delivered batch
};

struct Analysis {
  Bottleneck bottleneck = Bottleneck::kUnknown;
  std::string verdict;                       // one sentence
  std::vector<std::string> recommendations;  // what to change, most useful first; may be empty

  double seconds = 0;  // from the first request to the last delivery
  double batches_per_second = 0;
  double samples_per_second = 0;  // 0: samples are not known
  double bytes_per_second = 0;
  double wait_share = 0;  // of the consumer's time, spent waiting
  // The same without the wait for the first batch, in which workers start, where as much time as
  // that came after it: what the verdict goes by.
  double steady_wait_share = 0;
  double busy_share = 0;  // of the workers' time, in user code
  double hand_over_share = 0;
  double wait_ticket_share = 0;
  double wait_slot_share = 0;
  double avoided_share = 0;  // of the arrays that could travel by address, those that did
  double stream_share = 0;   // of the time, that somebody was at work in a stream
  double work_ms = 0;  // workers' time per batch: user code and hand-over; in line the stream's
  double step_ms = 0;  // consumer's own time per batch
  // The fewest workers that would keep up with the consumer; 0: unknown, or more than there may be.
  uint64_t workers_enough = 0;

  std::vector<StageTime> consumer_stages;
  std::vector<StageTime> worker_stages;
  // Of the chain, each without its inputs: shares of what the workers, and the stream's thread, did
  // in all of them. Empty where nothing was counted.
  std::vector<StageTime> chain;
  std::vector<StageTime> stream;
  WorkerFigures total{};  // over all workers
};

// A reading of the counters and nothing more: no clock, no system call. Any thread.
Analysis analyse(const Snapshot& snapshot);

}  // namespace penstock
