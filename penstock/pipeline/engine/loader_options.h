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
  uint64_t batch_size = 0;  // samples of a batch; 0: an item is a whole batch already
  bool shuffle = false;    // a new global permutation each epoch, keyed (seed, epoch), in no memory
  uint64_t seed = 0;       // of the shuffle, and of what SampleContext::rng draws
  bool drop_last = false;  // leave out a last batch that is not full
  // 0: batches are made in line, when asked for. Empty: as many threads as usable cores, of which
  // as many work as the consumer's pace asks for (without a timeout; see Tuner).
  std::optional<uint32_t> workers = std::nullopt;
  // Batches made and not yet taken, beside one in each worker's hands. Empty: 10; of a Dataset,
  // without a prefetch(n) either, as many as the consumer's pace asks for.
  std::optional<uint32_t> max_queue_size = std::nullopt;
  uint64_t max_bytes = 0;  // of such batches; 0: a quarter of the memory that may be used
  bool ordered = true;     // false: batches come as they get ready
  OnError on_error = OnError::kRaise;
  uint32_t retries = 0;  // times that a sample is tried again after an exception
  // A ticket (a worker's share of a batch) may take so long; then its thread is abandoned: it ends
  // when it comes back, and another takes its place. 0: for ever. Not in line.
  std::chrono::nanoseconds timeout{0};
  // This process's share of every epoch: disjoint, equally many batches for every rank; without
  // drop_last the last round is padded from the epoch's start (see Order).
  struct Shard {
    uint32_t rank = 0, world = 1;
  };
  Shard shard = {};
};

// What was counted so far, times in nanoseconds.
struct LoaderStats : ConsumerFigures {
  WorkerFigures workers;  // the sum over all of them
  // Of the workers' chain, and of a Dataset's stream: its stages by title.
  std::vector<StageSnapshot> stages, stream_stages;
  uint32_t active_workers = 0;   // that make batches now; the others rest
  uint32_t queue_size = 0;       // batches that may be made ahead now
  std::vector<LostItem> losses;  // every sample skipped or replaced: epoch, index, reason
};

// Where in the epoch an exception came from.
struct LoaderFailure {
  uint64_t epoch = 0, step = 0;  // the batch; `step` is this rank's
  uint64_t index = 0;            // of the sample, or item; of a Dataset: position in the stage
  std::string stage;             // of a Dataset: its title
  uint32_t worker = 0;
  std::exception_ptr error;
};

}  // namespace penstock
