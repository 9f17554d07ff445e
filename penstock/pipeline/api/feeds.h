#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"
#include "penstock/pipeline/engine/feeds_hub.h"

namespace penstock {

// n consumers of one Dataset, for n devices: batch i of a pass goes to consumer i mod n. One engine
// makes all batches; each consumer runs at its own speed within the budget (see FeedsHub for the
// rules).
//
//   penstock::Feeds feeds(train.batch(256), 2, {.workers = 8});
//   auto run = [&](uint32_t device) {
//     while (auto batch = feeds[device].next()) step(device, *batch);
//     feeds[device].close();  // also after an error: otherwise the others wait for this one
//   };
//
// options.max_bytes is for batches that the engine makes ahead and for batches that wait for a slow
// consumer. One waiting batch of each consumer is always allowed. At most options.max_queue_size
// (the Dataset's prefetch) batches wait.
//
// Errors: the error of a batch is thrown by its owner's next(), and the pass ends for all. The
// others get Error kClosed, whose text has that error.
//
// Threads: each consumer is used by one thread at a time; everything else may be called from any.
class Feeds {
 public:
  class Feed {
   public:
    // The next batch; empty once at the end of the pass. The next call is in the next pass, which
    // begins when this pass has ended for all. Errors: those of the batch, kClosed, kTimeout.
    std::optional<Example> next();
    // Leaves the pass, if a batch of it was taken: the remaining batches are dropped and counted.
    void begin() { hub_->begin(number_); }
    // Ends this consumer: its remaining batches are dropped and counted, and other consumers no
    // longer wait for it.
    void close() { hub_->close(number_); }

   private:
    friend class Feeds;
    Feed(std::shared_ptr<FeedsHub> hub, uint32_t number) : hub_(std::move(hub)), number_(number) {}
    std::shared_ptr<FeedsHub> hub_;
    uint32_t number_;
  };

  // `patience`: how long a consumer waits for another one to take its batches before Error
  // kTimeout, which names that one; nothing: forever. Errors: as Dataset::build; kInvalidArgument:
  // n is 0.
  Feeds(const Dataset& dataset, uint32_t n, const LoaderOptions& options = {},
        std::optional<std::chrono::nanoseconds> patience = std::nullopt);
  Feeds(Feeds&&) = default;
  ~Feeds();  // close()

  uint32_t size() const { return static_cast<uint32_t>(feeds_.size()); }
  Feed& operator[](uint32_t number);  // Error kInvalidArgument: out of range

  // The place of all consumers as JSON. restore() accepts it with any number of consumers and
  // workers; open consumers continue from there. Error kInvalidArgument: a state of another plan.
  std::string state() const { return hub_->state(); }
  void restore(const std::string& state) { hub_->restore(state); }
  // For each consumer: batches taken, and batches dropped because it left.
  std::vector<FeedsHub::Counts> counts() const { return hub_->counts(); }
  LoaderStats stats() const;  // of the engine, as for a Loader
  // Closes all consumers and the engine. A waiting next() throws Error kClosed. May be called
  // again.
  void close();

 private:
  std::shared_ptr<LoaderEngine> engine_;
  std::shared_ptr<FeedsHub> hub_;
  std::vector<Feed> feeds_;
};

// Several named Loaders, each with its own place. Switching between them is free, since all of them
// continue to make batches ahead.
//
//   penstock::Feedable feeds;
//   feeds.add("train", train.build({.workers = 6}));
//   feeds.add("validation", validation.build({.workers = 2}));
//   for (int step = 0; step < 10'000; ++step) {
//     learn(*feeds.next("train"));
//     if (step % 1000 != 999) continue;
//     feeds.reset("validation");
//     while (auto batch = feeds.next("validation")) evaluate(*batch);
//   }
//
// Each Loader has its own budget and workers. Feedable does not check that their batches have the
// same schema.
//
// Errors: kNotFound: no Loader of this name; the Loaders' own.
//
// Threads: as for Loader: close() may be called from any, everything else from one at a time.
class Feedable {
 public:
  // Error kInvalidArgument: the name is used already.
  void add(const std::string& name, Loader loader);

  // The Loader's next batch; empty once at the end of its pass. The next call begins its next pass.
  std::optional<Example> next(const std::string& name) { return (*this)[name].next(); }
  // Begins the Loader's next pass and drops the rest of the current one.
  void reset(const std::string& name);
  // Replaces the Loader and closes the old one. The new one begins its first pass.
  void reset(const std::string& name, Loader loader);

  Loader& operator[](const std::string& name);

  // All places as JSON: an object of the Loaders' states.
  std::string state() const;
  // Error kInvalidArgument: the state has other names, or is of other plans. Then nothing has
  // changed.
  void restore(const std::string& state);

  // Ends all workers. Batches that the user holds stay valid.
  void close();

 private:
  std::map<std::string, Loader> loaders_;
};

}  // namespace penstock
