#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/pipeline/block.h"
#include "penstock/pipeline/loader_engine.h"
#include "penstock/pipeline/plan.h"

namespace penstock {

// Feeds a Dataset: its batches, or, where nothing is batched, its elements one by one.
class PipelineEngine : public LoaderEngine {
 public:
  PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options);

  uint64_t steps() const override;
  LoaderState state() const override;
  void restore(const LoaderState& state) override;

 private:
  struct Checked {};
  PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options, Checked);

  std::unique_ptr<Fulfiller> make_worker() override;
  std::optional<Example> take() override;
  std::optional<Example> take_held() override;
  void drop_held() override;
  bool anything_held() const override { return held_.rows() != 0 || pending_ || skip_ != 0; }
  uint64_t epochs_per_pass() const override { return plan_->rounds(); }
  uint64_t index_of(const Ticket& ticket, uint32_t row) const override;
  void describe(Snapshot& snapshot) const override;

  Example hand_out();
  Block take_block(Post& post);
  void hold(Post& post, uint32_t worker, const std::vector<Outcome::Loss>& losses);

  std::shared_ptr<const Plan> plan_;
  SpecRef spec_;  // of the last batch

  // Elements that are handed out one by one: those of a ticket, and then perhaps its error.
  Block held_;                    // no rows: nothing is held
  uint64_t used_ = 0;             // of its rows
  std::vector<uint32_t> places_;  // of its rows among the ticket's
  uint64_t held_epoch_ = 0, held_step_ = 0;
  std::optional<LoaderFailure> pending_;
  uint64_t skip_ = 0;  // of the position's ticket, that are not to be handed out (again)
};

}  // namespace penstock
