#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "penstock/pipeline/engine/loader_engine.h"
#include "penstock/pipeline/engine/loader_worker.h"
#include "penstock/pipeline/engine/sample_layout.h"
#include "penstock/pipeline/feed/tickets.h"

namespace penstock {

// Feeds a dataset of samples (size() and get()), with its epoch hooks.
class SampleEngine : public LoaderEngine, private LoaderWorker::Orders {
 public:
  SampleEngine(std::unique_ptr<Source> source, const LoaderOptions& options);

  uint64_t steps() const override;
  LoaderState state() const override;
  void restore(const LoaderState& state) override;

 private:
  SampleEngine(uint64_t size, const LoaderOptions& options, const Tuner::Limits& tuning,
               std::unique_ptr<Source>& source);

  Order order() const override;
  std::unique_ptr<Fulfiller> make_worker() override;
  std::optional<Example> take() override;
  std::optional<Example> take_rows(Post& post);
  void enter_epoch(uint64_t epoch) override;
  void leave_epoch() override;
  uint64_t index_of(const Ticket& ticket, uint32_t row) const override;
  void describe(Snapshot& snapshot) const override;
  std::vector<std::string> stages() const override { return LoaderWorker::stages(); }

  IndexedTickets& tickets() { return static_cast<IndexedTickets&>(*tickets_); }

  std::unique_ptr<Source> source_;
  mutable std::mutex order_mutex_;
  Order order_;
  uint64_t version_ = 0;
  std::optional<uint64_t> open_epoch_;  // whose begin hook ran, but not its end
  SampleLayout layout_;                 // of the last batch
  RowLayout columns_;
};

}  // namespace penstock
