#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/observe/snapshot.h"

namespace penstock {

enum class Bottleneck {
  kUnknown,   // the run was too short for a verdict
  kBalanced,  // neither the consumer nor the workers wait much
  kConsumer,  // the training step: batches are ready before they are asked for
  kUser,      // user code, in the workers or without workers
  kTooSmall,  // a batch takes less time to make than to hand over
  kHandOver,  // copies on the way out of the workers
  kMemory,    // workers wait for memory although the consumer waits for batches
  kSource,    // workers are idle although the consumer waits for batches
  kStream,    // the one thread that reads a stream is busier than the workers
};
std::string_view name_of(Bottleneck bottleneck);

inline constexpr uint64_t kMaxLoaderWorkers = 256;  // the limit of a Loader

// Shares are of time, 0 to 1. Times of workers are summed over workers.
struct StageTime {
  std::string name;
  uint64_t total_ns = 0;
  double share = 0;         // of the time of all workers, or of the consumer's
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
  // The same without the wait for the first batch, during which workers start. That wait is left
  // out only if the run went on for at least as long afterwards. The verdict uses this share.
  double steady_wait_share = 0;
  double busy_share = 0;  // of the workers' time, in user code
  double hand_over_share = 0;
  double wait_ticket_share = 0;
  double wait_slot_share = 0;
  double avoided_share = 0;  // of the arrays that could be passed without a copy, those that were
  double stream_share = 0;   // of the time, in which the stream's thread was busy
  // Workers' time per batch: user code and hand-over; without workers also the stream's.
  double work_ms = 0;
  double step_ms = 0;  // consumer's own time per batch
  // The fewest workers that keep up with the consumer; 0: unknown, or more than kMaxLoaderWorkers.
  uint64_t workers_enough = 0;

  std::vector<StageTime> consumer_stages;
  std::vector<StageTime> worker_stages;
  // Stages of the chain, each without its inputs. Shares are of the workers' time, or the stream
  // thread's, in all stages. Empty if nothing was counted.
  std::vector<StageTime> chain;
  std::vector<StageTime> stream;
  WorkerFigures total{};  // over all workers
};

// Computes the analysis from the counters alone: no clock, no system call. Any thread.
Analysis analyse(const Snapshot& snapshot);

}  // namespace penstock
