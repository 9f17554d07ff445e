#include "penstock/pipeline/engine/local_outlet.h"

#include <utility>
#include <vector>

#include "penstock/pipeline/engine/outcome.h"

namespace penstock {
namespace {

class LocalOutlet : public ChainWorker::Outlet {
 public:
  void rows(Slot& slot, uint64_t bytes, std::vector<Outcome::Loss> losses) override {
    std::unique_ptr<Outcome> outcome;
    if (!losses.empty()) {
      outcome = std::make_unique<Outcome>();
      outcome->losses = std::move(losses);
    }
    hand_over(slot, ResultKind::kRows, bytes, std::move(outcome));
  }
  void fail(Slot& slot, const Ticket&, Failure failure) override {
    auto outcome = std::make_unique<Outcome>();
    outcome->error = std::move(failure.error);
    outcome->index = failure.position;
    outcome->stage = std::move(failure.stage);
    hand_over(slot, ResultKind::kError, 0, std::move(outcome));
  }
  void element(Slot& slot, const Ticket&, uint64_t bytes, SectionResult result) override {
    const ResultKind kind = result.failure ? ResultKind::kError : ResultKind::kRows;
    std::unique_ptr<Outcome> outcome;
    if (result.failure || !result.notes.empty()) {
      outcome = std::make_unique<Outcome>();
      outcome->section = std::move(result);
    }
    hand_over(slot, kind, bytes, std::move(outcome));
  }
};

}  // namespace

std::unique_ptr<ChainWorker::Outlet> local_outlet() { return std::make_unique<LocalOutlet>(); }

SectionResult LocalInlet::take(Unit& unit) {
  std::unique_ptr<Outcome> outcome = take_outcome(unit);
  return outcome == nullptr ? SectionResult() : std::move(outcome->section);
}

}  // namespace penstock
