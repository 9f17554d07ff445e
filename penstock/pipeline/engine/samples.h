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

// The user's data set, and how long it is: what its Loader and the plan over it share.
//
// Threads: source() may be called from any, as IndexedDataset says. length() from any; it changes
// only in read_length(), between epochs, while no worker is in the data set.
class Samples {
 public:
  explicit Samples(std::unique_ptr<Source> source)
      : source_(std::move(source)), length_(source_->size()) {}

  Source& source() const { return *source_; }
  uint64_t length() const { return length_.load(std::memory_order_acquire); }
  // Asks the data set. True: it has another length.
  bool read_length() {
    const uint64_t length = source_->size();
    return length_.exchange(length, std::memory_order_acq_rel) != length;
  }

 private:
  std::unique_ptr<Source> source_;
  std::atomic<uint64_t> length_;
};

// Batches of samples that a sampler lists: each ticket comes with the positions of its rows
// (PlanTickets::set_lists). Only the sampler knows how many batches there are. Error
// kInvalidArgument: `most_rows`, of any batch, is 0 or above 2^32 - 1.
Node::Ref listed_batches(Node::Ref samples, uint64_t most_rows);
// What a Loader with these options makes of samples: its order, policy, batches and shard. Error
// kInvalidArgument: options that cannot be.
Node::Ref batches_of(Node::Ref samples, const LoaderOptions& options);
// The same of a C++ data set.
Node::Ref plan_of_samples(std::shared_ptr<Samples> samples, const LoaderOptions& options);

}  // namespace penstock
