#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/train/call_queue.h"

namespace penstock::train {

using BatcherOptions = CallQueueOptions;

// One function for many callers: calls that are there at the same time become one call of it, on
// stacked inputs, and each caller gets its own row. CallQueue has the states of a call.
//
//   Batcher policy([&](const Example& batch) -> Example { return {{"action", act(batch)}}; },
//                  {.max_batch = 64, .max_wait_ns = 2'000'000});
//   Example action = policy({{"state", state}});  // in any thread
//
// The function runs in the thread of one of the callers, one call at a time. The first call that
// the function answers decides names, dtypes and shapes of all inputs. In a forked child the
// Batcher works, without the calls of other threads.
//
// Threads: any. REQUIRED: no call when it is destroyed.
class Batcher {
 public:
  // From tensors (calls, ...) to tensors with a row for each call, in new memory: the callers'
  // results are views of it.
  using Function = std::function<Example(const Example& batch)>;

  // Error kInvalidArgument: max_batch is 0, or max_queue is smaller.
  explicit Batcher(Function function, BatcherOptions options = {});

  // The row of this input. Errors: those of the function, which all callers of a batch get;
  // kInvalidArgument (an input unlike the first one, or not contiguous; the function returned
  // another number of rows; a call by the function itself), kClosed, kTimeout (`timeout_ns` >= 0;
  // the caller that runs the function does not time out).
  Example operator()(const Example& input, int64_t timeout_ns = -1);

  CallCounts counts() const { return queue_.counts(); }
  // Waiting calls end with kClosed; a batch that runs is completed. Idempotent.
  void close() { queue_.close(); }

 private:
  struct ExampleCall;

  void run(const CallQueue::Batch& batch);
  void check(const std::vector<Leaf>& leaves) const;

  const Function function_;
  CallQueue queue_;
  mutable std::mutex mutex_;
  std::vector<Leaf> like_;  // of the first input with an answer; guarded by mutex_
};

}  // namespace penstock::train
