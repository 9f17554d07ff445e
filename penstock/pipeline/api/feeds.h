#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/engine/feeds_hub.h"

namespace penstock {

// n consumers of one Dataset, for n devices: batch i of a pass goes to consumer i mod n. One engine
// makes the batches of all; each consumer goes at its own pace within the budget (see FeedsHub for
// the rules).
//
//   penstock::Feeds feeds(train.batch(256), 2, {.workers = 8});
//   auto run = [&](uint32_t device) {
//     while (auto batch = feeds[device].next()) step(device, *batch);
//     feeds[device].close();  // whatever happens: else the others wait for this one
//   };
//
// Half of options.max_bytes is for what the engine makes ahead, half for batches that wait for a
// slow consumer, of which there are options.max_queue_size (the Dataset's prefetch) at most.
//
// Errors. What a batch fails with comes out of its owner's next(), and the pass is over for all:
// the others get Error kClosed that names it.
//
// Threads. Each consumer is one thread's at a time; everything else may be called from any.
class Feeds {
 public:
  class Feed {
   public:
    // The next batch; empty once at the end of the pass. The call after that is in the next one,
    // which begins when the pass is over for all. Errors: the batch's own, kClosed, kTimeout.
    std::optional<Example> next();
    // Leaves the pass, if it took anything of it: what is left is dropped, and counted.
    void begin() { hub_->begin(number_); }
    // It takes nothing more: what is its is dropped, and counted, and nobody waits for it.
    void close() { hub_->close(number_); }

   private:
    friend class Feeds;
    Feed(std::shared_ptr<FeedsHub> hub, uint32_t number) : hub_(std::move(hub)), number_(number) {}
    std::shared_ptr<FeedsHub> hub_;
    uint32_t number_;
  };

  // `patience`: a consumer waits so long for another one to take its batches before Error kTimeout
  // says for which; nothing: for ever. Errors: as Dataset::build; kInvalidArgument: n is 0.
  Feeds(const Dataset& dataset, uint32_t n, const LoaderOptions& options = {},
        std::optional<std::chrono::nanoseconds> patience = std::nullopt);
  Feeds(Feeds&&) = default;
  ~Feeds();  // close()

  uint32_t size() const { return static_cast<uint32_t>(feeds_.size()); }
  Feed& operator[](uint32_t number);  // Error kInvalidArgument: there is none

  // The place of all, as JSON; restores with any number of consumers and workers. Those that are
  // not closed go on there. Error kInvalidArgument: a state of another plan.
  std::string state() const { return hub_->state(); }
  void restore(const std::string& state) { hub_->restore(state); }
  // Of each consumer: what it took, and what was dropped because it left.
  std::vector<FeedsHub::Counts> counts() const { return hub_->counts(); }
  LoaderStats stats() const;  // of the one engine, as a Loader's
  // Of all consumers and the engine: a next() that waits ends by Error kClosed. Twice is nothing.
  void close();

 private:
  std::shared_ptr<LoaderEngine> engine_;
  std::shared_ptr<FeedsHub> hub_;
  std::vector<Feed> feeds_;
};

}  // namespace penstock
