#include "penstock/pipeline/streams/mapped_input.h"

#include <array>
#include <memory>
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

// Runs on all remaining elements of the chunk at once, so that an exception leaves no partial
// state.
void MappedInput::apply() {
  Chunk& in = input_.chunk();
  const uint32_t first = input_.row(), end = first + input_.left();
  applied_ = input_.ordinal() + end;
  apart_.clear();
  if (in.spec() == nullptr) return;  // all elements failed
  if (run_ == nullptr || (bound_ != in.spec() && *bound_ != *in.spec())) {
    bound_ = in.spec();
    result_ = op_->result(*bound_);
    run_ = op_->bind(bound_, input_.context());
  }
  run(first, end, made_);
  if (!made_.mixed()) return;
  // The results' schemas differ: evaluate each row in a chunk of its own.
  apart_.resize(end);
  for (uint32_t row = first; row < end; ++row) {
    apart_[row] = std::make_unique<Chunk>(input_.context().scratch);
    run(row, row + 1, *apart_[row]);
  }
}

void MappedInput::run(uint32_t first, uint32_t end, Chunk& made) {
  Chunk& in = input_.chunk();
  std::array<uint64_t, Chunk::kRows> positions;
  std::iota(positions.begin(), positions.begin() + (end - first), input_.ordinal() + first);
  made.reset(result_, end);
  {
    StageClock::Part part(input_.context().clock);
    run_->run(Keys(input_.context(), epoch_, std::span(positions.data(), end - first), operation_),
              in, made, first);
  }
  if (made.mixed()) return;
  for (auto& [row, failure] : made.failures()) {
    if (failure.stage.empty()) failure.stage = stage_;
    failure.position = input_.ordinal() + row;
    in.fail(row, std::move(failure));
  }
}

}  // namespace penstock
