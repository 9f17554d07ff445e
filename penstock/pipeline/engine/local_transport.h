#pragma once

#include <memory>
#include <vector>

#include "penstock/pipeline/engine/plan_engine.h"

namespace penstock {

// Of workers in the consumer's own process: results are Outcomes.
class LocalTransport : public PlanEngine::Transport {
 public:
  std::unique_ptr<ChainWorker::Outlet> outlet() override;
  SectionInlet& inlet() override { return inlet_; }
  std::vector<Outcome::Loss> losses_in(Unit& unit) override;
  void discard(Unit& unit) override { (void)take_outcome(unit); }

 private:
  class Inlet : public SectionInlet {
   public:
    SectionResult take(Unit& unit) override;
  };

  Inlet inlet_;
};

}  // namespace penstock
