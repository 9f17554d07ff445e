#pragma once

#include <memory>
#include <vector>

#include "penstock/pipeline/engine/plan_engine.h"

namespace penstock {

// Transport for workers in the consumer's own process: results are Outcomes.
class LocalTransport : public PlanEngine::Transport {
 public:
  std::unique_ptr<ChainWorker::Outlet> outlet() override;
  ParallelMapResults& results() override { return results_; }
  std::vector<Loss> losses_in(Task& task) override;
  void discard(Task& task) override { (void)take_outcome(task); }

 private:
  class Results : public ParallelMapResults {
   public:
    ParallelMapResult take(Task& task) override;
  };

  Results results_;
};

}  // namespace penstock
