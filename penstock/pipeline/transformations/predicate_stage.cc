#include "penstock/pipeline/transformations/predicate_stage.h"

#include <cstring>
#include <exception>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

namespace {

void check_verdict(const ElementSpec& verdict, const std::string& stage) {
  const auto& leaves = verdict.leaves();
  if (leaves.size() == 1 && leaves[0].kind == LeafKind::kDense && leaves[0].shape.empty()) return;
  throw Error(Code::kInvalidArgument, stage,
              "the predicate gives " + verdict.to_string() + ", and not one boolean");
}

bool verdict_is_true(const Chunk& verdicts, uint32_t row) {
  static constexpr std::byte kZeros[16] = {};
  return std::memcmp(verdicts.at(0, row), kZeros, verdicts.row_bytes(0)) != 0;
}

Summarize verdict_of(const std::string& stage) {
  return [stage](const Chunk& made, uint32_t row) {
    check_verdict(*made.spec(), stage);
    Summary summary{};
    summary[0] = std::byte{verdict_is_true(made, row)};
    return summary;
  };
}

}  // namespace

bool PredicateInput::holds() {
  if (input().failed()) return true;
  if (mapped_.hidden()) return input().summary()[0] != std::byte{0};
  const Chunk& verdicts = mapped_.made();
  if (verdicts.spec() != checked_) {
    try {
      check_verdict(*verdicts.spec(), stage_);
    } catch (const Error&) {
      StreamInput& in = input();
      in.chunk().fail(in.row(), {stage_, in.ordinal() + in.row(), std::current_exception()});
      return true;
    }
    checked_ = verdicts.spec();
  }
  return verdict_is_true(verdicts, input().row());
}

PredicateStage::PredicateStage(const Built& input, Builder& builder, OpRef predicate,
                               std::string title)
    : predicate_(std::move(predicate)),
      operation_(builder.operation()),
      title_(std::move(title)),
      input_(builder.as_stream_with(input, predicate_, verdict_of(title_), operation_, title_)) {
  if (SpecRef seen = spec()) (void)predicate_->result(*seen);
}

std::optional<uint64_t> PredicateStage::length() const {
  if (input_.stream->length() == uint64_t{0}) return 0;
  return std::nullopt;
}

}  // namespace penstock
