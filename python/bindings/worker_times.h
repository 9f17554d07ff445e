#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/stages/stage_clock.h"

namespace penstock::python {

// The times of a PythonWorker by stage. One thread.
//
//   WorkerTimes::Piece piece = times.begin(WorkerTimes::kGet, rows);
class WorkerTimes {
 public:
  enum Stage : uint32_t { kGet, kCollate, kRows, kHandOver };
  using Piece = StageClock::Piece;

  // The names of the stages, in the order of Stage. `stream`: items come from generators.
  static std::vector<std::string> stages(bool stream) {
    return {stream ? "next()" : "__getitem__", "collate", "rows", std::string(kHandOverStage)};
  }

  // REQUIRED before anything is counted.
  void count_into(StageCounters& counters) { clock_.count_into(counters); }
  void count(Stage stage, uint64_t rows) { clock_.count(stage, rows); }
  // Counts the rows, and the time until the piece is destroyed. REQUIRED: no other piece exists.
  [[nodiscard]] Piece begin(Stage stage, uint64_t rows) {
    count(stage, rows);
    return {clock_, kinds_[stage], stage};
  }

 private:
  StageClock clock_;
  std::array<StageClock::Kind, 4> kinds_;
};

}  // namespace penstock::python
