#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "penstock/pipeline/element/source.h"
#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/plan/node.h"

namespace penstock {

// The user's data set and its length, shared by a Loader and its plan.
//
// Threads: source() may be called from any thread, as IndexedDataset says. length() may be called
// from any thread; it changes only in refresh_length(), between epochs, while no worker reads the
// data set.
class Samples {
 public:
  explicit Samples(std::unique_ptr<Source> source)
      : source_(std::move(source)), length_(source_->size()) {}

  Source& source() const { return *source_; }
  uint64_t length() const { return length_.load(std::memory_order_acquire); }
  // Asks the data set for its length. True: the length has changed.
  bool refresh_length() {
    const uint64_t length = source_->size();
    return length_.exchange(length, std::memory_order_acq_rel) != length;
  }

 private:
  std::unique_ptr<Source> source_;
  std::atomic<uint64_t> length_;
};

// Samples that the caller's own workers make, such as those of a Python data set. The engine knows
// only their number, which may change between epochs (PlanEngine::length_changed). `title`: what an
// item is.
using SampleCount = std::shared_ptr<const std::atomic<uint64_t>>;
Node::Ref caller_samples(SampleCount count, std::string title);

// Batches of samples that a sampler lists: each ticket carries the positions of its rows
// (PlanTickets::set_describer). Only the sampler knows the number of batches. `max_rows`: an upper
// bound for the rows of a batch. Error kInvalidArgument: `max_rows` is 0 or above 2^32 - 1.
Node::Ref listed_batches(Node::Ref samples, uint64_t max_rows);
// Batches of `rows` samples of streams that the caller's own workers read (RoundRobinTickets).
// Sample i of batch b has the position b * rows + i. Only the streams know the number of batches.
// Error kInvalidArgument: `rows` is 0 or above 2^32 - 1.
Node::Ref stream_batches(Node::Ref samples, uint64_t rows);
// The batches of `samples` for a Loader with these options: order, error policy, batch size and
// shard. Error kInvalidArgument: invalid options.
Node::Ref batches_of(Node::Ref samples, const LoaderOptions& options);
// As batches_of() for a C++ data set.
Node::Ref plan_of_samples(std::shared_ptr<Samples> samples, const LoaderOptions& options);

}  // namespace penstock
