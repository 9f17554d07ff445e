#include "penstock/pipeline/engine/outcome.h"

#include <utility>

#include "penstock/pipeline/stages/losses.h"

namespace penstock {

bool hand_over(Slot& slot, ResultKind kind, uint64_t bytes, std::unique_ptr<Outcome> outcome) {
  if (!slot.finish_object(kind, bytes, outcome.get())) return false;
  outcome.release();
  return true;
}

std::unique_ptr<Outcome> take_outcome(Task& task) {
  task.kind = ResultKind::kNone;
  return std::unique_ptr<Outcome>(
      reinterpret_cast<Outcome*>(std::exchange(task.object, uint64_t{0})));
}

std::vector<Loss> losses_of(const std::vector<Failure>& left_out) {
  std::vector<Loss> losses;
  for (const Failure& lost : left_out) {
    const bool replaced = lost.decision == Decision::kReplace;
    losses.push_back({0, lost.position, replaced, reason_of(lost), nullptr, {}, false});
  }
  return losses;
}

}  // namespace penstock
