#include "penstock/pipeline/streams/mapped_input.h"

#include <array>
#include <numeric>
#include <span>
#include <utility>

namespace penstock {

void MappedInput::begin(uint64_t epoch) {
  epoch_ = epoch;
  applied_ = 0;
  input_.begin(epoch);
}

void MappedInput::load(uint64_t epoch, const State& state) {
  epoch_ = epoch;
  applied_ = 0;
  input_.load(epoch, state);
}

bool MappedInput::more() {
  if (!input_.more()) return false;
  if (op_ != nullptr && !hidden_ && applied_ <= input_.ordinal() + input_.row()) apply();
  return true;
}

// To all of what is left of the chunk.
void MappedInput::apply() {
  Chunk& in = input_.chunk();
  const uint32_t first = input_.row(), end = first + input_.left();
  applied_ = input_.ordinal() + end;
  if (in.spec() == nullptr) return;  // all of it failed
  if (run_ == nullptr || (bound_ != in.spec() && *bound_ != *in.spec())) {
    bound_ = in.spec();
    result_ = op_->result(*bound_);
    run_ = op_->bind(bound_, input_.context());
  }
  std::array<uint64_t, Chunk::kRows> positions;
  std::iota(positions.begin(), positions.begin() + (end - first), input_.ordinal() + first);
  made_.reset(result_, end);
  StageClock::Part part(input_.context().clock);
  run_->run(Keys(input_.context(), epoch_, std::span(positions.data(), end - first), operation_),
            in, made_, first);
  for (auto& [row, failure] : made_.failures()) {
    if (failure.stage.empty()) failure.stage = stage_;
    failure.position = input_.ordinal() + row;
    in.fail(row, std::move(failure));
  }
}

}  // namespace penstock
