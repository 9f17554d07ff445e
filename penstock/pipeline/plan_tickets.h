#pragma once

#include <memory>

#include "penstock/pipeline/feed.h"
#include "penstock/pipeline/plan.h"

namespace penstock {

// The tickets of a Dataset.
class PlanTickets : public Tickets {
 public:
  explicit PlanTickets(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t base) override { return plan_->steps(base); }
  bool describe(const Position& at, Post& post) override {
    post.rows = plan_->rows(at.base, at.step);
    return true;
  }

 private:
  std::shared_ptr<const Plan> plan_;
};

}  // namespace penstock
