#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/plan/dataset_options.h"

namespace penstock {

struct LoaderOptions {
  uint64_t batch_size = 0;  // samples per batch; 0: an item is a whole batch already
  // A new global permutation each epoch, keyed by (seed, epoch), without extra memory.
  bool shuffle = false;
  uint64_t seed = 0;       // of the shuffle and of SampleContext::rng
  bool drop_last = false;  // drop a last batch that is not full
  // 0: batches are made in line by next(). Empty: as many threads as usable cores; the number of
  // active ones adapts to the consumer's speed (without a timeout; see Tuner).
  std::optional<uint32_t> workers = std::nullopt;
  // Batches finished and not yet taken; each worker may have one more pending. Empty: 10; for a
  // Dataset without prefetch(n), adapts to the consumer's speed.
  std::optional<uint32_t> max_queue_size = std::nullopt;
  uint64_t max_bytes = 0;  // of such batches; 0: a quarter of the memory limit
  bool ordered = true;     // false: batches are delivered as they are finished
  OnError on_error = OnError::kRaise;
  uint32_t retries = 0;  // retries of a sample after an exception
  // The time limit of a ticket (a worker's share of a batch). After that its thread is abandoned:
  // another one replaces it, and it ends when it returns. 0: no limit. Not for batches made in
  // line.
  std::chrono::nanoseconds timeout{0};
  // This process's share of every epoch: disjoint from other ranks, with equally many batches for
  // every rank; without drop_last the last round is padded from the epoch's start (see Order).
  struct Shard {
    uint32_t rank = 0, world = 1;
  };
  Shard shard = {};
};

// Counters so far; times in nanoseconds.
struct LoaderStats : ConsumerFigures {
  WorkerFigures workers;  // the sum over all workers
  // Stages by title: those of the workers' chain, and those of a Dataset's stream.
  std::vector<StageSnapshot> stages, stream_stages;
  uint64_t stream_bytes_copied = 0;  // of elements, on their way from a stream to the workers
  uint32_t active_workers = 0;       // that make batches now; the others are parked
  uint32_t queue_size = 0;           // batches that may be made ahead now
  std::vector<LostItem> losses;      // every sample skipped or replaced: epoch, index, reason
};

// The place of an exception in the epoch.
struct LoaderFailure {
  uint64_t epoch = 0, step = 0;  // of the batch; `step` is this rank's
  uint64_t index = 0;            // of the sample or item; for a Dataset: position in the stage
  std::string stage;             // for a Dataset: title of the stage
  uint32_t worker = 0;
  std::exception_ptr error;
};

}  // namespace penstock
