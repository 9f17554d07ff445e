#include "penstock/observe/snapshot.h"

namespace penstock {

std::vector<StageSnapshot> stages_of(const StageFigures& figures,
                                     std::span<const std::string> titles) {
  std::vector<StageSnapshot> stages;
  for (size_t i = 0; i < kStages && i < titles.size(); ++i) {
    if (figures[i].ns == 0 && figures[i].rows == 0) continue;
    const bool sum = i + 1 == kStages && titles.size() > kStages;
    stages.push_back(
        {titles[i] + (sum ? " and all after it" : ""), figures[i].ns, figures[i].rows});
  }
  return stages;
}

}  // namespace penstock
