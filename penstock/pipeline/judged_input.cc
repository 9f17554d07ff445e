#include "penstock/pipeline/judged_input.h"

#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

void JudgedInput::begin(uint64_t epoch) {
  epoch_ = epoch;
  judged_ = 0;
  input_.begin(epoch);
}

void JudgedInput::load(uint64_t epoch, const State& state) {
  epoch_ = epoch;
  judged_ = 0;
  input_.load(epoch, state);
}

bool JudgedInput::more() {
  if (!input_.more()) return false;
  if (judged_ <= input_.ordinal() + input_.row()) judge();
  return true;
}

// All of what is left of the chunk.
void JudgedInput::judge() {
  Chunk& in = input_.chunk();
  const uint32_t first = input_.row(), end = first + input_.left();
  holds_ = ~in.alive();
  judged_ = input_.ordinal() + end;
  if (in.spec() == nullptr) return;
  if (run_ == nullptr || (bound_ != in.spec() && *bound_ != *in.spec())) {
    bound_ = in.spec();
    result_ = predicate_.result(*bound_);
    run_ = predicate_.bind(bound_, input_.context());
  }
  std::array<uint64_t, Chunk::kRows> positions;
  std::iota(positions.begin(), positions.begin() + (end - first), input_.ordinal() + first);
  verdicts_.reset(result_, end);
  run_->run(Keys(input_.context(), epoch_, std::span(positions.data(), end - first), operation_),
            in, verdicts_, first);
  for (auto& [row, failure] : verdicts_.failures()) {
    if (failure.stage.empty()) failure.stage = stage_;
    failure.position = input_.ordinal() + row;
    in.fail(row, std::move(failure));
    holds_ |= uint64_t{1} << row;
  }
  if (verdicts_.spec() == nullptr) return;
  check(*verdicts_.spec());
  const size_t bytes = verdicts_.row_bytes(0);
  static constexpr std::byte kZeros[16] = {};
  for (uint32_t row = first; row < end; ++row) {
    if ((in.alive() >> row & 1) == 0) continue;
    if (std::memcmp(verdicts_.at(0, row), kZeros, bytes) != 0) holds_ |= uint64_t{1} << row;
  }
}

void JudgedInput::check(const ElementSpec& verdict) const {
  const auto& leaves = verdict.leaves();
  if (leaves.size() == 1 && leaves[0].kind == LeafKind::kDense && leaves[0].shape.empty()) return;
  throw Error(Code::kInvalidArgument, stage_,
              "the predicate gives " + verdict.to_string() + ", and not one boolean");
}

JudgedStage::JudgedStage(StreamedRef input, OpRef predicate, uint32_t operation, std::string title)
    : input_(std::move(input)),
      predicate_(std::move(predicate)),
      operation_(operation),
      title_(std::move(title)) {
  if (SpecRef spec = input_->spec()) (void)predicate_->result(*spec);
}

std::optional<uint64_t> JudgedStage::length() const {
  if (input_->length() == uint64_t{0}) return 0;
  return std::nullopt;
}

}  // namespace penstock
