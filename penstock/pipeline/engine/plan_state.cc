#include "penstock/pipeline/engine/plan_state.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/restore_error.h"

namespace penstock {

void check_same_plan(const LoaderState& state, const Plan& plan, uint64_t seed) {
  if (state.plan.empty())
    throw refuse_restore("the state is of a Loader over samples, not of a Dataset");
  const std::vector<std::string>& ours = plan.titles();
  const size_t stages = std::max(state.plan.size(), ours.size());
  for (size_t i = 0; i < stages; ++i) {
    std::string theirs = i < state.plan.size() ? state.plan[i] : "nothing";
    std::string own = i < ours.size() ? ours[i] : "nothing";
    if (theirs != own) {
      throw refuse_restore("the state was taken with " + theirs + " as stage " + std::to_string(i) +
                           ", this Dataset has " + own);
    }
  }
  if (state.seed != seed) {
    throw refuse_restore("the state was taken with seed=" + std::to_string(state.seed) +
                         ", this one was built with seed=" + std::to_string(seed) +
                         "; make them equal");
  }
  if (state.length != plan.all()) {
    throw refuse_restore("the state was taken with " + std::to_string(state.length) +
                         " elements in an epoch, this Dataset has " + std::to_string(plan.all()) +
                         "; has its source changed?");
  }
  if (state.world != plan.world() && !plan.shard_moves()) {
    throw refuse_restore(
        "the state was taken among " + std::to_string(state.world) +
        " ranks, this Dataset is one of " + std::to_string(plan.world()) +
        "; that needs nothing but map, enumerate, batch and prefetch above the shard");
  }
}

void check_within_epoch(uint64_t delivered, uint64_t all, uint64_t ranks, const char* what) {
  // The last round of several ranks may be filled up.
  if (delivered <= all || delivered - all < ranks) return;
  throw refuse_restore("the state says that " + std::to_string(delivered) + " " + what +
                       " of an epoch were delivered, and there are " + std::to_string(all));
}

}  // namespace penstock
