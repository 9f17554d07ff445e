#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "penstock/pipeline/engine/loader_engine.h"
#include "penstock/pipeline/engine/local_outlet.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/streams/section.h"

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
  PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options,
                 const Tuner::Limits& tuning, Checked);

  std::unique_ptr<Fulfiller> make_worker() override;
  std::optional<Example> take() override;
  std::optional<Example> take_held() override;
  void drop_held() override { output_.drop_held(); }
  void close_held() override { output_.close(); }
  bool anything_held() const override { return output_.anything_held(); }
  void start_others() override;
  void close_others() override;
  void let_go_of_others() override;
  void raise_failed() override;
  void leave_epoch() override;
  Position position() const override { return output_.position(); }
  uint64_t epochs_per_pass() const override { return plan_->rounds(); }
  uint64_t index_of(const Ticket& ticket, uint32_t row) const override;
  void describe(Snapshot& snapshot) const override;
  std::vector<std::string> stages() const override { return plan_->titles(); }
  std::vector<StageSnapshot> stream_stages() const override;

  Example example_of(const PlanOutput::Item& item) const;
  void count_losses();

  PlanTickets& tickets() { return static_cast<PlanTickets&>(*tickets_); }

  std::shared_ptr<const Plan> plan_;
  PlanOutput output_;
  LocalInlet inlet_;
  std::unique_ptr<Sections> sections_;  // of a plan that has some, where there are workers
  std::unique_ptr<Cursor> cursor_;      // of a plan with a stream
  std::thread reading_;                 // the cursor's
};

}  // namespace penstock
