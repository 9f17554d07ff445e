#include "penstock/pipeline/transformations/filter.h"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/stream_input.h"

namespace penstock {
namespace {

class Filter : public Streamed {
 public:
  Filter(StreamedRef input, OpRef predicate, uint32_t operation, std::string title)
      : input_(std::move(input)),
        predicate_(std::move(predicate)),
        operation_(operation),
        title_(std::move(title)) {
    if (SpecRef spec = input_->spec()) (void)predicate_->result(*spec);
  }

  SpecRef spec() const override { return input_->spec(); }
  std::optional<uint64_t> length() const override {
    if (input_->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  bool python() const override { return predicate_->python() || input_->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const Filter& stage, Context& context)
        : stage_(stage),
          context_(context),
          input_(*stage.input_, context),
          held_(context.scratch) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      input_.begin(epoch);
      judged_ = 0;
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      while (input_.more()) {
        if (judged_ <= input_.ordinal() + input_.row()) judge();
        // Those that go on, of what is left of the chunk.
        std::array<uint32_t, Chunk::kRows> rows;
        uint32_t count = 0;
        while (input_.left() > 0 && count < most) {
          if (keeps_ >> input_.row() & 1) rows[count++] = input_.row();
          input_.use();
        }
        if (count == 0) continue;
        Chunk& in = input_.chunk();
        out.reset(input_.spec(), count);
        for (uint32_t i = 0; i < count; ++i) pass_row(in, rows[i], out, i);
        return count;
      }
      return 0;
    }

    State save() const override { return input_.save(); }
    void load(uint64_t epoch, const State& state) override {
      epoch_ = epoch;
      input_.load(epoch, state);
      judged_ = 0;
    }

   private:
    // Which of the chunk's rows go on: those that hold, and those that failed.
    void judge() {
      Chunk& in = input_.chunk();
      const uint32_t first = input_.row(), end = first + input_.left();
      keeps_ = ~in.alive();
      judged_ = input_.ordinal() + end;
      if (in.spec() == nullptr) return;
      if (run_ == nullptr || (bound_ != in.spec() && *bound_ != *in.spec())) {
        bound_ = in.spec();
        result_ = stage_.predicate_->result(*bound_);
        run_ = stage_.predicate_->bind(bound_, context_);
      }
      std::array<uint64_t, Chunk::kRows> positions;
      std::iota(positions.begin(), positions.begin() + (end - first), input_.ordinal() + first);
      held_.reset(result_, end);
      run_->run(Keys(context_, epoch_, std::span(positions.data(), end - first), stage_.operation_),
                in, held_, first);
      for (auto& [row, failure] : held_.failures()) {
        if (failure.stage.empty()) failure.stage = stage_.title_;
        failure.position = input_.ordinal() + row;
        in.fail(row, std::move(failure));
        keeps_ |= uint64_t{1} << row;
      }
      if (held_.spec() == nullptr) return;
      check(*held_.spec());
      const size_t bytes = held_.row_bytes(0);
      static constexpr std::byte kZeros[16] = {};
      for (uint32_t row = first; row < end; ++row) {
        if ((in.alive() >> row & 1) == 0) continue;
        if (std::memcmp(held_.at(0, row), kZeros, bytes) != 0) keeps_ |= uint64_t{1} << row;
      }
    }

    void check(const ElementSpec& verdict) const {
      const auto& leaves = verdict.leaves();
      if (leaves.size() == 1 && leaves[0].kind == LeafKind::kDense && leaves[0].shape.empty())
        return;
      throw Error(Code::kInvalidArgument, stage_.title_,
                  "the predicate gives " + verdict.to_string() + ", and not one boolean");
    }

    const Filter& stage_;
    Context& context_;
    StreamInput input_;
    Chunk held_;  // what the predicate says
    SpecRef bound_, result_;
    std::unique_ptr<OpRun> run_;
    uint64_t epoch_ = 0;
    uint64_t keeps_ = 0;
    uint64_t judged_ = 0;  // elements of the epoch
  };

  StreamedRef input_;
  OpRef predicate_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace

Built FilterNode::build(std::vector<Built> inputs, Builder& builder) const {
  StreamedRef input = builder.as_stream(inputs[0]);
  return Built::of(
      std::make_shared<Filter>(std::move(input), predicate_, builder.operation(), title()));
}

}  // namespace penstock
