#include "penstock/pipeline/judged_input.h"

#include <cstring>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

bool JudgedInput::more() {
  if (!mapped_.more()) return false;
  const SpecRef& verdict = mapped_.made().spec();
  if (input().failed() || verdict == checked_) return true;
  const auto& leaves = verdict->leaves();
  if (leaves.size() != 1 || leaves[0].kind != LeafKind::kDense || !leaves[0].shape.empty()) {
    throw Error(Code::kInvalidArgument, stage_,
                "the predicate gives " + verdict->to_string() + ", and not one boolean");
  }
  checked_ = verdict;
  return true;
}

bool JudgedInput::holds() {
  static constexpr std::byte kZeros[16] = {};
  if (input().failed()) return true;
  const Chunk& verdicts = mapped_.made();
  return std::memcmp(verdicts.at(0, input().row()), kZeros, verdicts.row_bytes(0)) != 0;
}

JudgedStage::JudgedStage(const Built& input, Builder& builder, OpRef predicate, std::string title)
    : predicate_(std::move(predicate)),
      operation_(builder.operation()),
      title_(std::move(title)),
      input_(builder.as_stream_with(input, predicate_, operation_, title_)) {
  if (SpecRef seen = spec()) (void)predicate_->result(*seen);
}

std::optional<uint64_t> JudgedStage::length() const {
  if (input_.stream->length() == uint64_t{0}) return 0;
  return std::nullopt;
}

}  // namespace penstock
